"""English names of the languages that serve as a country's only official one (ISO 639-1 codes)."""

_TABLE = """
am:Amharic ar:Arabic az:Azerbaijani be:Belarusian bg:Bulgarian bn:Bengali bs:Bosnian ca:Catalan
cs:Czech da:Danish de:German dv:Divehi dz:Dzongkha el:Greek en:English es:Spanish et:Estonian
fa:Persian fi:Finnish fo:Faroese fr:French he:Hebrew hr:Croatian hu:Hungarian hy:Armenian
id:Indonesian is:Icelandic it:Italian ja:Japanese ka:Georgian kk:Kazakh kl:Greenlandic km:Khmer
ko:Korean ky:Kyrgyz lo:Lao lt:Lithuanian lv:Latvian mk:Macedonian mn:Mongolian ms:Malay mt:Maltese
my:Burmese ne:Nepali nl:Dutch no:Norwegian pl:Polish pt:Portuguese ro:Romanian ru:Russian si:Sinhala
sk:Slovak sl:Slovene so:Somali sq:Albanian sr:Serbian sv:Swedish sw:Swahili th:Thai tk:Turkmen
tr:Turkish uk:Ukrainian uz:Uzbek vi:Vietnamese zh:Chinese
"""

LANGUAGES: dict[str, str] = dict(pair.split(":") for pair in _TABLE.split())
