"""Drug names to ingredients and ATC-3: the tables, known names, properties, and the two public demos."""

from __future__ import annotations

import csv
import re
import time
from collections import Counter, defaultdict
from importlib.resources import files
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patients_like_me.codes.atc import all_atc3_codes
from patients_like_me.codes.drug_lexicon import load_lexicon
from patients_like_me.codes.drug_names import (
    KEPT_BY_ROUTE,
    match_drug_name,
    match_drug_names,
)
from patients_like_me.codes.drug_text import split_words

KNOWN = {
    # plain ingredients, salts, tall-man letters, forms
    "Furosemide": "C03C",
    "Insulin": "A10A",
    "Insulin Glargine": "A10A",
    "HumaLOG": "A10A",
    "Insulin (Regular) for Hyperkalemia": "A10A",
    "Metoprolol Tartrate": "C07A",
    "Metoprolol Succinate XL": "C07A",
    "Heparin": "B01A",
    "Aspirin EC": "B01A N02B",
    "Potassium Chloride": "A12B B05X",
    "Potassium Chloride Replacement (Critical Care and Oncology) ": "A12B B05X",
    "Vancomycin HCl": "J01X A07A",
    "HYDROmorphone (Dilaudid)": "N02A",
    "OxyCODONE SR (OxyconTIN)": "N02A",
    "Amiodarone HCl": "C01B",
    "Phenytoin Sodium Extended": "N03A",
    "Levothyroxine Sodium": "H03A",
    "Cholecalciferol (Vitamin D3)": "A11C",
    "Vitamin B-12": "B03B",
    "Calcium Gluconate": "A12A",
    "Losartan Potassium": "C09C",
    "Leucovorin Calcium": "V03A",
    "Hydrocortisone Na Succ.": "H02A",
    "Dexamethasone Sodium Phosphate": "H02A",
    "Ketorolac Tromethamine": "M01A",
    "Penicillin G Potassium": "J01C",
    "*NF* Ertapenem Sodium": "J01D",
    "lasix 40 mg po bid": "C03C",
    "PHENObarbital - ICU Alcohol Withdrawal (Initial Load / Rescue Dose)": "N03A",
    # INH is isoniazid by itself, and an inhalation next to a drug
    "INH": "J04A",
    "ALBUTEROL 2.5 MG/3 ML UD INH SOLN": "R03A",
    "DUONEB 3 MG-0.5 MG/3 ML UD INH SOLN": "R03A",
    # the place of use decides among the codes
    "Lidocaine 5% Patch": "N01B D04A",
    "Lidocaine 1%": "N01B C01B",
    "Vancomycin Oral Liquid": "A07A",
    "Vancomycin IV": "J01X",
    "Acetylcysteine (IV)": "V03A",
    "Albuterol 0.083% Neb Soln": "R03A",
    "Ipratropium Nasal": "R01A",
    "PrednisoLONE Acetate 1% Ophth. Susp.": "S01B",
    "Dexamethasone": "H02A",
    "Nystatin Oral Suspension": "A07A",
    "Nystatin Cream": "D01A",
    "Terbinafine 1% Cream": "D01A",
    "Miconazole Nitrate Vag Cream 2%": "G01A",
    "Hydrocortisone (Rectal) 2.5% Cream": "C05A",
    "Chlorhexidine Gluconate 0.12% Oral Rinse": "A01A R02A",
    "Fluticasone Propionate NASAL": "R01A",
    "Vigamox": "S01A",
    "Sodium Chloride Nasal": "R01A",
    "Sodium Chloride Tablet": "A12C",
    # combinations
    "Amoxicillin-Clavulanic Acid": "J01C",
    "Oxycodone-Acetaminophen (5mg-325mg)": "N02A",
    "Sulfameth/Trimethoprim DS": "J01E",
    "Acetaminophen-Caff-Butalbital": "N02B",
    "Losartan Potassium-HCTZ": "C09D",
    "Ipratropium-Albuterol Neb": "R03A",
    "Lidocaine 1%/Epinephrine 1:100000": "N01B",
    "Neomycin-Polymyxin-Dexameth Ophth. Oint": "S01C",
    "Aluminum-Magnesium Hydrox.-Simethicone": "A02A",
    "Fentanyl Epidural + Bupivacaine": "N01B",
    # fluids
    "Dextrose 50%": "B05B V06D",
    "Iso-Osmotic Dextrose": "B05B V06D",
    "D5W (EXCEL BAG)": "B05B V06D",
    "0.9% Sodium Chloride (Mini Bag Plus)": "B05X B05B",
    "D5 1/2NS": "B05B",
    "D5 ½NS": "B05B",
    "LR": "B05B",
    "Potassium Chl 20 mEq / 1000 mL D5 1/2 NS": "B05B B05X",
    "Heparin 25,000 units in 0.9% Sodium Chloride 250 mL": "B01A",
    "Amino Acids 4.25% W/ Dextrose 5%": "B05B",
    "Heparin Flush (10 units/ml)": "B01A",
    "Fleet Enema (Mineral Oil)": "A06A",
    # vaccines, contrast, blood products, nutrition
    "PNEUMOcoccal 23-valent polysaccharide vaccine": "J07A",
    "Influenza Vaccine Quadrivalent": "J07B",
    "Hepatitis B Immune Globulin (Nabi-HB)": "J06B",
    "Readi-Cat 2 (Barium Sulfate 2% Suspension)": "V08B",
    "Albumin 25% (12.5g / 50mL)": "B05A",
    "Multivitamins W/minerals": "A11A",
    "Prismasate (B32 K2)": "B05Z",
}
NOT_MEDICINES = {
    "Sodium Chloride 0.9%  Flush": "saline or dextrose flush",
    "NS flush": "saline or dextrose flush",
    "Sterile Water For Irrigation": "water",
    "SW": "water",
    "Bag": "container",
    "Vial": "container",
    "Soln.": "carrier without a name",
    "Syringe (0.9% Sodium Chloride)": "syringe filled by the pharmacy with a carrier",
    "Insulin Syringe U-500": "syringe",
    "Yellow CADD Cassette": "pump cassette",
    "Sterile Diluent for Flolan": "diluent or vehicle",
    "Insulin pen needles": "device or supply",
}
UNKNOWN = ["", "   ", "5 mg", "Mystery", "Hold", "pt own med", "Study drug XK-203", "Calcium Unobtainate", "()", "%"]


def rows_of(table: str) -> list[dict[str, str]]:
    text = files("patients_like_me.codes").joinpath(table).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


class TestTables:
    def test_there_are_at_least_900_ingredients_that_are_no_combinations(self) -> None:
        combinations = set(load_lexicon().combinations.values())
        assert sum(row["ingredient"] not in combinations for row in rows_of("ingredients.csv")) >= 900

    @pytest.mark.parametrize(
        ("table", "key"), [("ingredients.csv", "ingredient"), ("drug_synonyms.csv", "name"), ("atc3_names.csv", "atc3")]
    )
    def test_tables_are_sorted_and_without_duplicates(self, table: str, key: str) -> None:
        names = [row[key] for row in rows_of(table)]
        assert names == sorted(set(names))

    @pytest.mark.parametrize("table", ["ingredients.csv", "drug_synonyms.csv", "drug_words.csv"])
    def test_names_are_in_lower_case_and_trimmed(self, table: str) -> None:
        for row in rows_of(table):
            name = next(iter(row.values()))
            assert name
            assert name == name.lower().strip()

    def test_every_code_exists_and_none_is_repeated(self) -> None:
        known = set(all_atc3_codes())
        for ingredient, codes in load_lexicon().atc3.items():
            assert codes, ingredient
            assert len(set(codes)) == len(codes), ingredient
            for code in codes:
                assert re.fullmatch(r"[A-Z]\d\d[A-Z]", code), (ingredient, code)
                assert code in known, (ingredient, code)

    def test_every_role_and_route_is_one_that_the_matcher_knows(self) -> None:
        routes = {*KEPT_BY_ROUTE, "injection"}
        words = rows_of("drug_words.csv")
        assert {row["role"] for row in words} == {"salt", "form", "unit", "note", "short", "weak", "carrier"}
        assert {row["detail"] for row in words if row["role"] == "form"} <= routes | {""}
        assert {row["route"] for row in rows_of("drug_synonyms.csv")} <= routes | {""}
        assert {row["rule"] for row in rows_of("not_medicines.csv")} == {"pattern", "word"}
        assert all(row["reason"] for row in rows_of("not_medicines.csv"))

    def test_weak_words_and_carriers_are_names(self) -> None:
        lexicon = load_lexicon()
        weak = [row["word"] for row in rows_of("drug_words.csv") if row["role"] == "weak"]
        assert all(tuple(word.split()) in lexicon.names for word in weak)
        assert lexicon.carriers <= set(lexicon.atc3)

    def test_every_ingredient_and_synonym_is_found_by_its_own_name(self) -> None:
        for ingredient in load_lexicon().atc3:
            assert match_drug_name(ingredient).ingredients == (ingredient,)
        for row in rows_of("drug_synonyms.csv"):
            assert match_drug_name(row["name"]).ingredients == (row["ingredient"],), row["name"]


class TestKnownNames:
    @pytest.mark.parametrize("name", KNOWN)
    def test_medicine(self, name: str) -> None:
        match = match_drug_name(name)
        assert (match.kind, " ".join(match.atc3)) == ("medicine", KNOWN[name])

    @pytest.mark.parametrize("name", NOT_MEDICINES)
    def test_not_a_medicine(self, name: str) -> None:
        match = match_drug_name(name)
        assert (match.kind, match.ingredients, match.atc3) == ("not_a_medicine", (), ())

    @pytest.mark.parametrize("name", UNKNOWN)
    def test_unknown(self, name: str) -> None:
        match = match_drug_name(name)
        assert (match.kind, match.ingredients, match.atc3) == ("unknown", (), ())

    @pytest.mark.parametrize(
        ("name", "ingredients"),
        [
            ("Acetaminophen w/Codeine", ("acetaminophen-codeine",)),
            ("Dextran 40 10% in NS", ("dextran",)),
            ("Humulin-R Insulin", ("insulin regular",)),
            ("Iron-Folic Acid", ("iron", "folic acid")),
            ("Calcium leucovorin", ("leucovorin",)),
            ("Clonazepam / Warfarin", ("clonazepam", "warfarin")),
        ],
    )
    def test_ingredients(self, name: str, ingredients: tuple[str, ...]) -> None:
        assert match_drug_name(name).ingredients == ingredients


some_ingredient = st.sampled_from(sorted(load_lexicon().atc3))
some_strength = st.builds(
    "{} {}".format, st.floats(0.01, 1000).map(lambda amount: f"{amount:g}"), st.sampled_from(["mg", "mL", "%", "units"])
)


class TestProperties:
    @given(st.text())
    def test_any_text_gives_an_answer_that_agrees_with_itself(self, text: str) -> None:
        match = match_drug_name(text)
        assert (match.kind == "medicine") == bool(match.ingredients) == bool(match.atc3)
        assert match == match_drug_names([text, text])[1]

    @given(st.text(alphabet=st.characters(codec="ascii")))
    def test_capitals_do_not_matter(self, text: str) -> None:
        assert match_drug_name(text) == match_drug_name(text.upper()) == match_drug_name(text.swapcase())

    @given(st.text())
    def test_split_words_stay_as_they_are_when_split_again(self, text: str) -> None:
        words = [word.text for word in split_words(text)]
        assert [word.text for word in split_words(" ".join(words))] == words

    @given(some_ingredient, some_strength)
    def test_tall_man_letters_and_a_strength_change_nothing(self, ingredient: str, strength: str) -> None:
        written = "".join(letter.upper() if place % 3 else letter for place, letter in enumerate(ingredient))
        assert match_drug_name(f"{written} {strength}").ingredients == (ingredient,)

    @given(some_ingredient)
    def test_the_ingredients_of_a_match_match_themselves(self, ingredient: str) -> None:
        first = match_drug_name(f"*NF* {ingredient.title()} (Generic) 5 mg")
        assert match_drug_name(" / ".join(first.ingredients)).ingredients == first.ingredients


def test_ten_thousand_names_take_less_than_two_seconds() -> None:
    ingredients = list(load_lexicon().atc3)
    names = [f"{ingredients[n % len(ingredients)].title()} {n} mg Tab (Brand)" for n in range(10_000)]
    start = time.process_time()
    matches = match_drug_names(names)
    assert time.process_time() - start < 2
    assert sum(match.kind == "medicine" for match in matches) == len(names)


DEMOS = {"mimic3": "mimic3_demo/PRESCRIPTIONS.csv.gz", "mimic4": "mimic4_demo/hosp/prescriptions.csv.gz"}


def prescriptions(shared_data: Path, demo: str) -> Counter[tuple[str, str]]:
    """Count the rows of each drug name and 11-digit NDC; a missing NDC is blank."""
    table = pl.read_csv(shared_data / DEMOS[demo], columns=["drug", "ndc"], infer_schema=False)
    ndcs = [(ndc or "").strip() for ndc in table["ndc"]]
    return Counter(zip(table["drug"], ("" if ndc in ("", "0") else ndc.zfill(11) for ndc in ndcs), strict=True))


@pytest.fixture(scope="module")
def atc3_by_ndc(shared_data: Path) -> dict[str, set[str]]:
    """Return the NDC chain: the MIT tables, and the FDA table where they are silent."""

    def read(name: str) -> pl.DataFrame:
        return pl.read_csv(shared_data / "codes" / f"{name}.csv.gz", infer_schema=False)

    to_atc3 = read("rxcui_to_atc3_graphcare")
    food_and_drug = read("fda_ndc11_rxcui_atc3_2020")
    chain: dict[str, set[str]] = {}
    for pairs in (
        read("ndc11_to_rxcui_gamenet").join(to_atc3, on="rxcui").select("ndc11", "atc3"),
        read("ndc11_to_atc3_mit"),
        pl.concat(
            [
                food_and_drug.select("ndc11", pl.col("atc3").str.split("|")).explode("atc3"),
                food_and_drug.drop("atc3").join(to_atc3, on="rxcui").select("ndc11", "atc3"),
            ]
        ),
    ):
        found: defaultdict[str, set[str]] = defaultdict(set)
        for ndc, code in pairs.drop_nulls().iter_rows():
            found[ndc].add(code)
        chain = {**found, **chain}
    return chain


@pytest.mark.parametrize(("demo", "floor"), [("mimic3", 0.9995), ("mimic4", 0.9995)])
def test_the_tables_cover_the_medicines_of_the_demos(shared_data: Path, demo: str, floor: float) -> None:
    kinds: Counter[str] = Counter()
    for (drug, _), rows in prescriptions(shared_data, demo).items():
        kinds[match_drug_name(drug).kind] += rows
    assert kinds["medicine"] / (kinds["medicine"] + kinds["unknown"]) >= floor
    assert kinds["not_a_medicine"] / kinds.total() < 0.09


@pytest.mark.parametrize(("demo", "floor"), [("mimic3", 0.975), ("mimic4", 0.977)])
def test_names_and_ndc_chain_share_a_code(
    shared_data: Path, atc3_by_ndc: dict[str, set[str]], demo: str, floor: float
) -> None:
    both = shared = 0
    for (drug, ndc), rows in prescriptions(shared_data, demo).items():
        codes = set(match_drug_name(drug).atc3)
        if codes and ndc in atc3_by_ndc:
            both += rows
            shared += rows * bool(codes & atc3_by_ndc[ndc])
    assert both > 7_500
    assert shared / both >= floor
