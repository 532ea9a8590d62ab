"""Map the name of a drug, as hospitals write it, to its ingredients and their ATC-3 codes.

``drug_text`` splits the name into words; ``drug_lexicon`` holds the tables. Here the words are read from left
to right, the longest known name first; strengths, salts, forms, routes and notes between them are skipped.
A name of several ingredients is first looked up as a combination of its own, then part by part.

Choices a user should know:

- Brackets are read only where the text outside them names no ingredient: they mostly hold brands.
- An ingredient may have several codes. A form in the name (``Ophth``, ``Cream``, ``Neb``, ``Oral``) keeps the
  codes of that place. Without one, codes bound to a place or to tests are dropped, unless listed first.
- Carrier fluids (0.9% sodium chloride, dextrose, lactated Ringer's) are medicines, ATC B05: they are infused in
  amounts that matter, and NDC tables map them too, whatever bag they come in. They are dropped next to a drug
  that they carry. Water, saline flushes and bare containers are not medicines; heparin flushes are.
- Dextrose keeps two codes: B05B, where infusions of sugar belong, and V06D, the code that bears the name of
  glucose and that NDC tables give for the same bags. With B05B alone, names and NDCs would disagree on each of them.
- An unknown word does not spoil a match, except next to a bare element (``Calcium``) or an abbreviation.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Literal

from patients_like_me.codes.drug_lexicon import Lexicon, Words, load_lexicon, parts_of
from patients_like_me.codes.drug_text import Word, is_strength, split_brackets, split_words

NameKind = Literal["medicine", "not_a_medicine", "unknown"]

# Codes for use at one place of the body or for tests: not what a bare ingredient name means.
PLACE_BOUND = (
    "A01A", "B05C", "C05", "D", "G01", "M02A", "P03A", "R01A", "R02A", "R03A", "R03B", "R05C", "S", "V04C",
)  # fmt: skip
# For each route that a name may state, most telling first: the codes it keeps.
KEPT_BY_ROUTE: dict[str, tuple[str, ...]] = {
    "eye": ("S01", "S03"),
    "ear": ("S02", "S03"),
    "nose": ("R01",),
    "vaginal": ("G01", "G02", "G03"),
    "rectal": ("A06A", "A07", "C05A"),
    "mouth": ("A01A", "A07A", "R02A"),
    "inhaled": ("R03A", "R03B", "R05C"),
    "irrigation": ("B05C",),
    "jelly": ("D04A", "N01B"),
    "transdermal": ("A04A", "C01D", "C02", "D04A", "G03", "M02A", "N01B", "N02A", "N04", "N06", "N07"),
    "skin": ("D01A", "D02", "D03", "D04", "D05A", "D06", "D07", "D08", "D09", "D10A", "D11", "M02A", "P03A"),
    "oral": ("A02", "A06A", "A07A", "A12"),
}
NOT_INJECTED = ("A02", "A06A", "A07", "A12B", "P01A")


@dataclass(frozen=True)
class DrugMatch:
    """What a drug's name was found to be; ``ingredients`` and ``atc3`` are empty unless it is a medicine."""

    kind: NameKind
    ingredients: tuple[str, ...] = ()
    atc3: tuple[str, ...] = ()


@dataclass
class _Find:
    """A name found among the words; the flags tell whether a separator comes before and after it."""

    words: Words
    ingredient: str
    weak: bool
    separated_before: bool
    separated_after: bool = False


@dataclass
class _Reading:
    """The names found in a text and the number of words that nothing explains."""

    finds: list[_Find]
    unknown_words: int


def match_drug_name(name: str) -> DrugMatch:
    """Find the ingredients in a drug's name and their ATC-3 codes.

    >>> match_drug_name("OxyCODONE SR (OxyconTIN)")
    DrugMatch(kind='medicine', ingredients=('oxycodone',), atc3=('N02A',))
    >>> match_drug_name("Brimonidine Tartrate 0.15% Ophth.").atc3
    ('S01E',)
    >>> match_drug_name("Sterile Water").kind, match_drug_name("Mystery").kind
    ('not_a_medicine', 'unknown')
    """
    lexicon = load_lexicon()
    words = split_words(name, lexicon.expansions)
    if _is_ruled_out(words, lexicon):
        return DrugMatch("not_a_medicine")
    ingredients, routes = _ingredients(name, words, lexicon)
    if not ingredients:
        return DrugMatch("not_a_medicine" if _is_container(words, lexicon) else "unknown")
    routes |= {lexicon.routes[word.text] for word in words if word.text in lexicon.routes}
    codes = [code for ingredient in ingredients for code in _codes(lexicon.atc3[ingredient], routes)]
    return DrugMatch("medicine", ingredients, tuple(dict.fromkeys(codes)))


def match_drug_names(names: Iterable[str]) -> list[DrugMatch]:
    """Match many names, in their order; equal names are matched once.

    >>> [match.kind for match in match_drug_names(["Lasix", "Bag", "Lasix"])]
    ['medicine', 'not_a_medicine', 'medicine']
    """
    matches: dict[str, DrugMatch] = {}
    wanted = list(names)
    for name in wanted:
        if name not in matches:
            matches[name] = match_drug_name(name)
    return [matches[name] for name in wanted]


def _is_ruled_out(words: list[Word], lexicon: Lexicon) -> bool:
    """Tell whether a rule says that a name is not a medicine."""
    text = " ".join(word.text for word in words)
    return any(rule.fullmatch(text) for rule in lexicon.not_medicine_patterns)


def _is_container(words: list[Word], lexicon: Lexicon) -> bool:
    """Tell whether a name without unknown words names a container or supply."""
    return not _read(words, lexicon).unknown_words and any(word.text in lexicon.container_words for word in words)


def _ingredients(name: str, words: list[Word], lexicon: Lexicon) -> tuple[tuple[str, ...], set[str]]:
    """Return the ingredients and the routes that brands among the names imply.

    A name known as a whole, brackets and all, is taken at once. Else the text before `` for `` is read, then
    all outside brackets, then inside; the first that names an ingredient wins.
    """
    whole = tuple(word.text for word in words)
    if lexicon.names.get(whole) in lexicon.atc3:
        route = lexicon.brand_routes.get(whole)
        return (lexicon.names[whole],), {route} if route else set()
    outside, inside = split_brackets(name)
    for text in dict.fromkeys((outside.partition(" for ")[0], outside, inside)):
        finds = _trusted(_read(split_words(text, lexicon.expansions), lexicon), lexicon)
        if ingredients := _combine(list(dict.fromkeys(find.ingredient for find in finds)), lexicon):
            routes = {lexicon.brand_routes[find.words] for find in finds if find.words in lexicon.brand_routes}
            return ingredients, routes
    return (), set()


def _read(words: list[Word], lexicon: Lexicon) -> _Reading:
    """Read the words from left to right, the longest name first."""
    texts = tuple(word.text for word in words)
    reading = _Reading([], 0)
    follows_name = False
    separated = False
    place = 0
    while place < len(texts):
        separated = separated or words[place].separated
        if separated and reading.finds:
            reading.finds[-1].separated_after = True
        name_length = _longest(texts, place, lexicon.names, lexicon.longest_name)
        salt_length = _longest(texts, place, lexicon.salts, 2)
        noise_length = _longest(texts, place, lexicon.noise, 2)
        if follows_name and not separated and salt_length and salt_length >= name_length:
            place += salt_length
        elif name_length and name_length >= noise_length:
            found = texts[place : place + name_length]
            weak = found in lexicon.weak_names
            reading.finds.append(_Find(found, lexicon.names[found], weak, separated))
            follows_name = not weak
            separated = False
            place += name_length
        elif noise_length or is_strength(texts[place], lexicon.units):
            place += max(noise_length, 1)
        else:
            reading.unknown_words += 1
            follows_name = False
            place += 1
    return reading


def _longest(texts: Words, place: int, known: Container[Words], limit: int) -> int:
    """Return how many words from ``place`` on are known together; 0 where not even one is."""
    for length in range(min(limit, len(texts) - place), 0, -1):
        if texts[place : place + length] in known:
            return length
    return 0


def _trusted(reading: _Reading, lexicon: Lexicon) -> list[_Find]:
    """Drop weak names: next to strong ones unless separators set them apart, alone where a word is unknown.

    A name that is also the word of a form (``INH``) is the form wherever something else is named.
    """
    finds = [find for find in reading.finds if find.words not in lexicon.noise] or reading.finds
    if all(find.weak for find in finds):
        return [] if reading.unknown_words else finds
    return [
        find
        for find in finds
        if not find.weak
        or ((find.separated_before or find is finds[0]) and (find.separated_after or find is finds[-1]))
    ]


def _combine(names: list[str], lexicon: Lexicon) -> tuple[str, ...]:
    """Return the combination that the names make up, else the names without carriers and general terms."""
    parts = frozenset(part for name in names for part in parts_of(name))
    if len(names) > 1 and parts in lexicon.combinations:
        return (lexicon.combinations[parts],)
    carried = [name for name in names if name not in lexicon.carriers]
    if carried and len(carried) < len(names):
        return _combine(carried, lexicon)
    known = [name for name in names if name in lexicon.atc3]
    words = {name: set(name.split()) for name in known}
    return tuple(name for name in known if not any(words[name] < words[other] for other in known))


def _codes(codes: tuple[str, ...], routes: set[str]) -> tuple[str, ...]:
    """Keep the codes that fit the stated routes, else those not bound to a place, and always at least one."""
    for route, kept in KEPT_BY_ROUTE.items():
        if route in routes and (fitting := tuple(code for code in codes if code.startswith(kept))):
            return fitting
    usual = tuple(code for code in codes if code == codes[0] or not code.startswith(PLACE_BOUND))
    if "injection" in routes:
        return tuple(code for code in codes if not code.startswith(PLACE_BOUND + NOT_INJECTED)) or usual
    return usual
