"""Images and audio: folders of files, and tables that name them."""
