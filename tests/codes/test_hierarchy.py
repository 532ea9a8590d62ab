"""The multi-level CCS file and ATC prefixes give every category its ancestors, or name the ones without."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from patients_like_me.codes.atc import all_atc3_codes
from patients_like_me.codes.ccs import ccs_categories
from patients_like_me.codes.hierarchy import HEADER_WORDS, HIERARCHY_TABLES, Ancestors, _multi_level_ccs, atc_ancestors
from patients_like_me.codes.store import CodeStore
from patients_like_me.codes.table_files import read_delimited, read_text
from patients_like_me.errors import PlmError

HEADER = "'ICD-9-CM CODE','CCS LVL 1','CCS LVL 1 LABEL','CCS LVL 2','CCS LVL 2 LABEL','CCS LVL 3','CCS LVL 3 LABEL'\n"
ROWS = (
    "'01000','1',\"Infectious diseases\",'1.1',\"Bacterial infection\",'1.1.1',\"Tuberculosis [1.]\"\n"
    "'0088 ','1',\"Infectious diseases\",'1.2',\"Intestinal infection [135.]\",' ',\" \"\n"
    "'31200','5',\"Mental illness\",'5.3',\"Attention deficit [652]\",'5.3.1',\"Conduct disorder [6521]\"\n"
    "'7856 ','14',\"Musculoskeletal\",'14.3',\"Fracture\",'14.3.4',\"Treatment (other than hip) [147.\"\n"
    "'E0000','18',\"Residual codes; all E codes [259. and 260.]\",' ',\" \",' ',\" \"\n"
)


def read_multi_level_ccs(path: Path) -> Ancestors:
    return _multi_level_ccs(read_delimited(read_text(path), source=path, header_words=HEADER_WORDS), path)


@pytest.mark.parametrize("packed", [False, True])
def test_ancestors_are_nearest_first_and_named(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / ("multi.csv.gz" if packed else "multi.csv")
    path.write_bytes(gzip.compress((HEADER + ROWS).encode()) if packed else (HEADER + ROWS).encode())

    found = read_multi_level_ccs(path)

    assert found.of["1"] == ("1.1", "1")
    assert found.of["135"] == ("1",)
    assert found.of["652"] == ("5",)
    assert "6521" not in found.of
    assert found.of["147"] == ("14.3", "14")
    assert found.of["259"] == found.of["260"] == found.of["2601"] == ("18",)
    assert found.names["18"] == "Residual codes; all E codes"


def test_a_file_without_levels_or_brackets_is_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "single.csv"
    wrong.write_text("icd9cm,ccs\n0010,135\n")
    with pytest.raises(PlmError, match="has no columns 'CCS LVL 1'"):
        read_multi_level_ccs(wrong)

    bare = tmp_path / "bare.csv"
    bare.write_text(HEADER + "'01000','1',\"Infectious diseases\",'1.1',\"Bacterial infection\",' ',\" \"\n")
    with pytest.raises(PlmError, match="no label of"):
        read_multi_level_ccs(bare)

    torn = tmp_path / "torn.csv"
    torn.write_text(HEADER + ROWS + "'01001','2',\"Neoplasms\",'2.1',\"Tuberculosis [1.]\",' ',\" \"\n")
    with pytest.raises(PlmError, match=r"puts category 1 below 1\.1 and 1 and below 2"):
        read_multi_level_ccs(torn)


def test_the_real_files_cover_all_categories_but_one(shared_data: Path) -> None:
    diagnoses = read_multi_level_ccs(shared_data / "codes" / "ccs_multi_dx_2015.csv.gz")
    procedures = read_multi_level_ccs(shared_data / "codes" / "ccs_multi_pr_2014.csv.gz")

    of_diagnoses = diagnoses.for_codes(ccs_categories("diagnosis")["ccs"])
    assert of_diagnoses.sentence("diagnosis") == "284 of 285 diagnosis codes have ancestors; without: 150"
    assert of_diagnoses.of["108"] == ("7.2", "7")
    assert of_diagnoses.names["7.2"] == "Diseases of the heart"
    assert procedures.for_codes(ccs_categories("procedure")["ccs"]).sentence("procedure") == (
        "231 of 231 procedure codes have ancestors"
    )
    chapters = dict(ccs_categories("diagnosis").select("ccs", "chapter").iter_rows())
    # The chapter is told independently by the table of ICD-10 codes.
    assert {code: int(above[-1]) for code, above in of_diagnoses.of.items()} == {
        code: chapters[code] for code in of_diagnoses.of
    }


def test_every_atc3_code_has_two_ancestors() -> None:
    found = atc_ancestors(all_atc3_codes())

    assert found.without == ()
    assert all(above == (code[:3], code[0]) for code, above in found.of.items())


def test_an_installed_hierarchy_is_the_one_of_the_file(tmp_path: Path) -> None:
    path, store = tmp_path / "ccs_multi_dx_2015.csv", CodeStore(tmp_path / "codes")
    path.write_text(HEADER + ROWS)
    assert Ancestors.installed("ccs_multi_dx", store) is None

    assert [part.table for part in store.add(path).added] == ["ccs_multi_dx"]

    found, expected = Ancestors.installed("ccs_multi_dx", store), read_multi_level_ccs(path)
    assert found is not None
    assert found.of == expected.of
    assert found.names.items() <= expected.names.items()

    own = tmp_path / "own.csv"
    own.write_text("ccs,level,ancestor,name\n7,1,group,Group\n7,2,chapter,Chapter\n")
    with pytest.raises(PlmError, match="is a hierarchy, of diagnoses or of procedures; say which: --as ccs_multi_dx"):
        store.add(own)
    store.add(own, table="ccs_multi_pr")
    procedures = Ancestors.installed("ccs_multi_pr", store)
    assert procedures is not None
    assert procedures.of == {"7": ("group", "chapter")}
    own.write_text("ccs,level,ancestor,name\n7,first,group,Group\n")
    with pytest.raises(PlmError, match=r"a level of .* is not a number"):
        store.add(own, table="ccs_multi_pr")


def test_the_real_files_are_told_apart(shared_data: Path, tmp_path: Path) -> None:
    store = CodeStore(tmp_path / "codes")
    for name, table in zip(("ccs_multi_dx_2015.csv.gz", "ccs_multi_pr_2014.csv.gz"), HIERARCHY_TABLES, strict=True):
        assert [part.table for part in store.add(shared_data / "codes" / name).added] == [table]
        found = Ancestors.installed(table, store)
        assert found is not None
        assert found.of == {
            code: above for code, above in read_multi_level_ccs(shared_data / "codes" / name).of.items() if above
        }
