"""The trainer that geodata feeds: `python -m train CONFIG.yaml`.

From top to bottom, each layer importing downwards only:

    __main__                          the command line (and the demo)
    trainer                           the loop, and nothing but the loop
    steps                             one optimizer step over all ranks
    state | evaluation                what a checkpoint holds; the model on the held-out split
    tasks                             what a model is taught: next or masked tokens, classes
    checkpoint | elastic | monitor    committed saves, signals and torchrun, the run's record
    data | models | optim | precision | parallel
    norms                             what stands in place of batch normalisation
    remote | durable                  geodata's errors and config; files whole or not there
    config                            the `train:` section

`data` alone imports `geodata.loader`, `remote` alone `geodata.remote`; nothing else of geodata is
used. `remote` lies below its siblings because all of them raise the errors it passes on.
"""
