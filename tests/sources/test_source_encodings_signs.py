"""Signs that the counted texts lack are likely where a standard has its frequent ones."""

import pytest

from geodata.sources.encodings.declared import SURE
from geodata.sources.encodings.detection import detected
from geodata.sources.encodings.languages import languages

READING = (
    "今天下午老師帶我們去圖書館，我借了三本小說和一本介紹台灣老街的書。回家以後媽媽說晚上要下雨，"
    "叫我把陽台的衣服收進來。弟弟正在看電視，他最喜歡的球隊昨天贏了比賽，所以他高興得不得了。吃飯的"
    "時候爸爸談起他年輕時在山上打工的故事，大家聽得津津有味，連平常不愛說話的奶奶也笑了起來。"
)
TRAVEL = (
    "記者在現場看到，許多民眾一大早就到車站排隊買票，天氣雖然很冷，大家還是聊得很開心。站長表示，"
    "春節期間會多開二十班車，請旅客提早出門，不要把貴重的東西留在座位上。一位從高雄來的太太說，她已經"
    "三年沒有回娘家，這次帶了兩個孩子和一大包水果，希望能趕上今晚的團圓飯。"
)
MARKET = (
    "봄볕이 쨍쨍한 장터 골목에서 할머니는 쑥떡을 팔고, 꼬마들은 솜사탕을 쥔 채 깔깔대며 뛰놀았다. "
    "옆집 아저씨는 낡은 트럭 짐칸에 배추와 갓을 잔뜩 싣고 왔는데, 흥정하는 목소리가 쩌렁쩌렁 "
    "울렸다. 생선 좌판에는 꽁치와 갈치가 번쩍거렸고 얼음 녹은 물이 뚝뚝 떨어졌다."
)


@pytest.mark.parametrize("text", [READING, TRAVEL])
@pytest.mark.parametrize("encoding", ["big5", "cp950", "big5hkscs"])
def test_everyday_traditional_chinese_is_sure(text, encoding):
    name, confidence = detected(text.encode(encoding), True)
    assert text.encode(encoding).decode(name) == text and confidence > 0.9


def test_everyday_korean_is_sure_and_johab_is_not_taken_for_chinese():
    assert detected(MARKET.encode("euc_kr"), True) == ("cp949", 1.0)
    _name, confidence = detected(MARKET.encode("johab"), True)
    assert confidence < SURE


@pytest.mark.parametrize(
    ("script", "frequent", "rare"),
    [("simplified", "蟹", "蠼"), ("traditional", "蟹", "蠼"), ("korean", "쨍", "蟹")],
)
def test_a_sign_that_was_not_counted_is_likelier_among_the_frequent_ones(script, frequent, rare):
    [language] = [found for found in languages() if found.script == script]
    assert language.costs[" " + frequent] == 12
    assert language.costs[" " + rare] >= 16
