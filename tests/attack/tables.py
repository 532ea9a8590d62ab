"""Tables that hospitals really send: other encodings, cut files, shifted rows, odd values, wrong ids."""

from __future__ import annotations

import csv
import gzip
import io
import random
import shutil
import string
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl
from polars.exceptions import PolarsError
from tiny_eicu import TABLES as EICU
from tiny_hospital import TABLES as MIMIC4
from tiny_mimic3 import TABLES as MIMIC3
from tiny_omop import TABLES as OMOP

from attack.outcome import Counts, judge
from attack.prepared import CleanOutcomes, prepared, verdict

Draw = random.Random
START = datetime(2150, 1, 1, 10)


def own_tables(seed: int = 0, patients: int = 14) -> dict[str, list[str]]:
    """Return own tables with every column that the reader knows."""
    draw = Draw(seed)
    header = "subject_id,visit_id,admission_time,discharge_time,sex,age,died"
    visits = [f"{header},insurance,language,religion,marital_status,ethnicity,site,unit"]
    events, labels = ["subject_id,visit_id,time,kind,code"], ["visit_id,task,value"]
    number = 0
    for patient in range(patients):
        day, age, sex = draw.randrange(200), draw.randrange(20, 90), draw.choice("FM")
        for _ in range(draw.randrange(1, 5)):
            number += 1
            visit, subject = f"vis{2000 + number}", f"pat{1000 + patient}"
            begin = START + timedelta(days=day, hours=draw.randrange(20))
            end = begin + timedelta(hours=draw.randrange(10, 200))
            visits.append(
                f"{subject},{visit},{begin},{end},{sex},{age},0,{draw.choice(['public', 'private'])},english,none,"
                f"single,other,{draw.choice(['north', 'south'])},ward"
            )
            codes = draw.sample(["I50.9", "E11.9", "I10", "N18.9", "J18.9", "A41.9", "J44.9", "I48.91"], 4)
            events += [f"{subject},{visit},{begin + timedelta(hours=1)},diagnosis,{code}" for code in codes]
            events.append(f"{subject},{visit},{begin + timedelta(hours=2)},medication/name,furosemide")
            events.append(
                f"{subject},{visit},{begin + timedelta(hours=3)},medication/atc,{draw.choice(['A10A', 'B01A'])}"
            )
            events.append(f"{subject},{visit},{begin + timedelta(hours=3)},procedure/own,dialysis {draw.randrange(3)}")
            labels.append(f"{visit},outcome,{draw.randrange(2)}")
            day += (end - begin).days + draw.randrange(2, 80)
    names = ["kind,code,name", *(f"procedure,dialysis {n},Dialysis of kind {n}" for n in range(3))]
    return {"visits": visits, "events": events, "labels": labels, "names": names}


SOURCES: dict[str, dict[str, list[str]]] = {
    "tables": own_tables(),
    "mimic4": MIMIC4,
    "mimic3": MIMIC3,
    "eicu": EICU,
    "omop": OMOP,
}
#: How often a source, a table and a mutation are drawn until one changes something.
TRIES = 200


def write_source(folder: Path, tables: dict[str, list[str]]) -> None:
    folder.mkdir(parents=True)
    for name, lines in tables.items():
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Mutation:
    """A change to one file; ``knowable`` where a careful reader can see from the tables that something is odd."""

    name: str
    change: Callable[[Path, Draw], None]
    knowable: bool = True


def _on_lines(change: Callable[[list[str], Draw], list[str]]) -> Callable[[Path, Draw], None]:
    def apply(path: Path, draw: Draw) -> None:
        lines = path.read_text(encoding="utf-8").splitlines()
        path.write_text("\n".join(change(lines, draw)) + "\n", encoding="utf-8")

    return apply


def _on_bytes(change: Callable[[bytes, Draw], bytes]) -> Callable[[Path, Draw], None]:
    return lambda path, draw: path.write_bytes(change(path.read_bytes(), draw)) and None


def _on_cell(values: list[str], columns: tuple[str, ...] = ()) -> Callable[[Path, Draw], None]:
    """Put one of some values into a cell of a column whose name holds one of the words; any column without words."""

    def change(lines: list[str], draw: Draw) -> list[str]:
        header = lines[0].lower().split(",")
        places = [n for n, name in enumerate(header) if not columns or any(word in f"={name}" for word in columns)]
        if not places or len(lines) < 2:
            return lines
        row = draw.randrange(1, len(lines))
        cells = lines[row].split(",")
        if len(cells) != len(header):
            return lines
        cells[draw.choice(places)] = draw.choice(values)
        return [*lines[:row], ",".join(cells), *lines[row + 1 :]]

    return _on_lines(change)


def _gzipped(damage: str) -> Callable[[Path, Draw], None]:
    def apply(path: Path, draw: Draw) -> None:
        packed = bytearray(gzip.compress(path.read_bytes()))
        if damage == "cut":
            packed = packed[: draw.randrange(1, len(packed))]
        elif damage == "flip":
            packed[draw.randrange(len(packed))] ^= 1 << draw.randrange(8)
        path.unlink()
        path.with_suffix(".csv.gz").write_bytes(packed)

    return apply


def _as_parquet(path: Path, draw: Draw) -> None:
    rows = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"))))
    if len({len(row) for row in rows}) > 1:
        raise ValueError("rows of several lengths: converted to Parquet, nobody could see that a field was missing")
    pl.read_csv(io.BytesIO(path.read_bytes()), infer_schema=False).write_parquet(path.with_suffix(".parquet"))
    path.unlink()


def _replaced_by(what: str) -> Callable[[Path, Draw], None]:
    def apply(path: Path, draw: Draw) -> None:
        path.unlink()
        if what == "folder":
            path.mkdir()
        elif what == "link":
            path.symlink_to(path.with_name("nowhere"))
        elif what == "other":
            other = draw.choice(sorted(path.parent.glob("*.csv")) or [Path(__file__)])
            shutil.copy(other, path)

    return apply


def _doubled_row(lines: list[str], draw: Draw) -> list[str]:
    row = draw.randrange(1, len(lines)) if len(lines) > 1 else 0
    return [*lines, lines[row]]


def _conflicting_row(lines: list[str], draw: Draw) -> list[str]:
    """Repeat a row with one cell changed."""
    if len(lines) < 2:
        return lines
    cells = draw.choice(lines[1:]).split(",")
    cells[draw.randrange(len(cells))] = draw.choice(["1", "x", "", "2150-05-05 00:00:00"])
    return [*lines, ",".join(cells)]


#: What the names of columns with ids of patients and visits end in.
IDS = ("subject_id", "visit_id", "hadm_id", "uniquepid", "stayid", "person_id", "visit_occurrence_id")


def _same_id_written_otherwise(lines: list[str], draw: Draw) -> list[str]:
    """Write the id of one row in another way, as programs do on export."""
    header = lines[0].lower().split(",")
    places = [n for n, name in enumerate(header) if name.endswith(IDS)]
    if not places or len(lines) < 2:
        return lines
    row, place = draw.randrange(1, len(lines)), draw.choice(places)
    cells = lines[row].split(",")
    if place >= len(cells):
        return lines
    old = cells[place]
    wide = "".join(chr(ord(sign) + 0xFEE0) if sign.isdigit() else sign for sign in old)
    cells[place] = draw.choice(
        [old.upper(), f"{old} ", f" {old}", f"{old}\u00a0", f"\u200b{old}", f'"""{old}"""', f"{old}\ufeff", wide]
        + ([f"{old}.0", f"0{old}"] if old.isdigit() else [old.replace("pat", "pat0").replace("vis", "vis0")])
    )
    return [*lines[:row], ",".join(cells), *lines[row + 1 :]]


def _moved(lines: list[str], draw: Draw) -> list[str]:
    rows = lines[1:]
    draw.shuffle(rows)
    return [lines[0], *rows]


def _columns_in_another_order(lines: list[str], draw: Draw) -> list[str]:
    if any('"' in line for line in lines):
        return lines
    order = list(range(len(lines[0].split(","))))
    draw.shuffle(order)
    return [",".join(line.split(",")[n] for n in order) for line in lines]


def _random_text(draw: Draw) -> str:
    pool = string.printable.replace("\n", "").replace("\r", "").replace(",", "").replace('"', "")
    return "".join(draw.choice(pool + "äß漢字🙂\u202e\u200b\x00\x1b") for _ in range(draw.randrange(0, 30)))


def _flipped(raw: bytes, draw: Draw) -> bytes:
    content = bytearray(raw)
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    return bytes(content)


TIMES = ("time", "dod", "dob", "date")
MUTATIONS: list[Mutation] = [
    Mutation("windows line ends", _on_bytes(lambda raw, draw: raw.replace(b"\n", b"\r\n"))),
    Mutation("carriage returns alone", _on_bytes(lambda raw, draw: raw.replace(b"\n", b"\r"))),
    Mutation("byte order mark", _on_bytes(lambda raw, draw: b"\xef\xbb\xbf" + raw)),
    Mutation("utf-16", _on_bytes(lambda raw, draw: raw.decode().encode(draw.choice(["utf-16", "utf-16-le", "utf-32"])))),
    Mutation("no last line end", _on_bytes(lambda raw, draw: raw.rstrip(b"\n"))),
    Mutation("blank lines at the end", _on_bytes(lambda raw, draw: raw + b"\n\n")),
    Mutation("blank line inside", _on_lines(lambda lines, draw: [*lines[:2], "", *lines[2:]])),
    Mutation("gzip", _gzipped("")),
    Mutation("cut gzip", _gzipped("cut")),
    Mutation("flipped gzip", _gzipped("flip")),
    Mutation("parquet", _as_parquet),
    Mutation("upper-case header", _on_lines(lambda lines, draw: [lines[0].upper(), *lines[1:]])),
    Mutation("blanks in the header", _on_lines(lambda lines, draw: [lines[0].replace(",", " , "), *lines[1:]])),
    Mutation("columns in another order", _on_lines(_columns_in_another_order)),
    Mutation("another separator", _on_bytes(lambda raw, draw: raw.replace(b",", draw.choice([b";", b"\t", b"|"])))),
    Mutation("one more column", _on_lines(lambda lines, draw: [f"{line},{'extra' if n == 0 else n}" for n, line in enumerate(lines)])),
    Mutation("a column twice", _on_lines(lambda lines, draw: [f"{line},{draw.choice(lines[0].split(',')).upper() if n == 0 else 'x'}" for n, line in enumerate(lines)])),
    Mutation("cut in a row", _on_bytes(lambda raw, draw: raw[: max(raw.rindex(b",") - draw.randrange(0, 9), raw.rstrip().rindex(b"\n") + 2)])),
    Mutation("a comma without quotes", _on_lines(lambda lines, draw: [line.replace(",", ",x,", 1) if n == 2 else line for n, line in enumerate(lines)])),
    Mutation("a field too few", _on_lines(lambda lines, draw: [line.rsplit(",", 1)[0] if n == 1 else line for n, line in enumerate(lines)])),
    Mutation("an open quote", _on_lines(lambda lines, draw: [line.replace(",", ',"', 1) if n == len(lines) - 1 else line for n, line in enumerate(lines)])),
    Mutation("header alone", _on_lines(lambda lines, draw: lines[:1])),
    Mutation("no header", _on_lines(lambda lines, draw: lines[1:])),
    Mutation("empty file", _on_bytes(lambda raw, draw: b"") , True),
    Mutation("missing file", lambda path, draw: path.unlink()),
    Mutation("a folder", _replaced_by("folder")),
    Mutation("a link to nothing", _replaced_by("link")),
    Mutation("another table's content", _replaced_by("other")),
    Mutation("two forms of one table", lambda path, draw: path.with_suffix(".csv.gz").write_bytes(gzip.compress(path.read_bytes())) and None),
    Mutation("a part beside the whole", lambda path, draw: path.with_name(f"{path.stem}-0001.csv").write_bytes(path.read_bytes()) and None),
    Mutation("a sex spelled oddly", _on_cell(["Woman", "FF", "9x", "F/M"], ("=gender",))),
    Mutation("NUL bytes", _on_bytes(lambda raw, draw: raw[: len(raw) // 2] + b"\0\0\0\0" + raw[len(raw) // 2 :]), False),
    Mutation("an id written otherwise", _on_lines(_same_id_written_otherwise)),
    Mutation("ages that nobody has", _on_cell(["-1", "150", "1e3", "nan", "inf", "old", "2147483647", "99999999999999999999", "1_0"], ("=age", "anchor_age"))),
    Mutation("deaths spelled oddly", _on_cell(["2", "maybe", "-1", "x1", "dead", "1.5"], ("died", "expire"))),
    # Another value that is possible cannot be noticed.
    Mutation("another death", _on_cell(["TRUE ", "1.0", "n", " 0"], ("died", "expire")), False),
    Mutation("a discharge status spelled oddly", _on_cell(["Alive?", "not dead", "2", "x"], ("dischargestatus",))),
    Mutation("another discharge status", _on_cell(["expired", "EXPIRED", "Dead", "Died", "Deceased", "E", "1", "alive", "NULL"], ("dischargestatus",)), False),
    Mutation("a cancelled order spelled oddly", _on_cell(["maybe", "x", "-1"], ("cancelled",))),
    Mutation("another order", _on_cell(["yes", "YES", "Y", "1", "True", "no", "N"], ("cancelled",)), False),
    Mutation("times that are none", _on_cell(["2150-02-30", "0000-00-00", "99999-01-01", "20500101", "yesterday", "01/02/2150", "2150-01-01T10:00:00Z", "2150-13-01 00:00:00", "1e9", "2150-01-01 25:00:00"], TIMES)),
    Mutation("times far away", _on_cell(["1492-01-01 00:00:00", "9999-12-31 23:59:59", "0001-01-01"], TIMES), False),
    Mutation("a blank id", _on_cell(["", " ", "\u00a0"], IDS)),
    Mutation("an unknown kind", _on_cell(["diagnose", "diagnosis/icd11", "", "/", "medication/"], ("kind",))),
    Mutation("an unknown version", _on_cell(["11", "x", "", "-1", "9.5"], ("icd_version",))),
    Mutation("a code that is none", _on_cell(["ZZZZZZ", "???", "", "I50,9"], ("icd_code", "code"))),
    Mutation("a label that is none", _on_cell(["", " "], ("=value",))),
    Mutation("a task with an odd name", _on_cell(["a b", "../x", "[red]", ""], ("task",))),
    Mutation("a doubled row", _on_lines(_doubled_row), False),
    Mutation("a conflicting row", _on_lines(_conflicting_row), False),
    Mutation("rows in another order", _on_lines(_moved), False),
    Mutation("a row less", _on_lines(lambda lines, draw: [*lines[:1], *lines[2:]]), False),
    Mutation("a flipped bit", _on_bytes(_flipped), False),
    Mutation("any bytes", _on_bytes(lambda raw, draw: raw[: (at := draw.randrange(len(raw)))] + draw.randbytes(draw.randrange(1, 9)) + raw[at:]), False),
    Mutation("nothing but noise", _on_bytes(lambda raw, draw: draw.randbytes(draw.randrange(1, 400))), False),
    Mutation("any text in a cell", lambda path, draw: _on_cell([_random_text(draw)])(path, draw), False),
    Mutation("a cell of another row", lambda path, draw: _on_cell([draw.choice(path.read_text().replace("\n", ",").split(","))])(path, draw), False),
    Mutation("a very long cell", _on_cell(["x" * 200_000]), False),
    Mutation("a number too large", _on_cell(["1e308", "-1e308", "9" * 40, "0x10", "١٢"]), False),
]  # fmt: skip


class TableAttack:
    """Mutate tables of every source; ``room`` is a folder for what is written."""

    def __init__(self, room: Path) -> None:
        self.room = room
        self.clean = CleanOutcomes(room, lambda source, folder: write_source(folder, SOURCES[source]))

    def attack(self, seed: int, counts: Counts, mutation: Mutation | None = None) -> str:
        """Draw a source, a table and one or two mutations that change it; return what came of it."""
        draw = Draw(seed)
        for _ in range(TRIES):
            source, table, done = self._mutated(draw, mutation)
            if done:
                break
        else:
            # Nothing that was drawn applies: no input.
            return "unchanged"
        clean, out = self.clean.of(source), self.room / "cohort"
        shutil.rmtree(out, ignore_errors=True)
        story = f"tables seed {seed}: {source} {table}: {' and '.join(one.name for one in done)}"
        counts.inputs += 1
        told = prepared(source, self.room / "source", out)
        judge(counts, told, story, folder=self.room)
        found = verdict(told, out, clean)
        if found == "silent" and all(one.knowable for one in done):
            counts.blame("silent_changes", story)
        return found

    def _mutated(self, draw: Draw, mutation: Mutation | None) -> tuple[str, str, list[Mutation]]:
        """Write a source with a mutated table; return its name, the table's, and the mutations that changed a byte."""
        folder = self.room / "source"
        shutil.rmtree(folder, ignore_errors=True)
        source = draw.choice(["tables", "tables", *SOURCES])
        write_source(folder, SOURCES[source])
        untouched = before = files_of(folder)
        table, done = draw.choice(sorted(SOURCES[source])), []
        chosen = [mutation or draw.choice(MUTATIONS)]
        if mutation is None and draw.random() < 0.25:
            chosen.append(draw.choice(MUTATIONS))
        for one in chosen:
            # What the first change made of a file may be nothing that a second one can work on.
            with suppress(UnicodeError, ValueError, IndexError, PolarsError):
                if (folder / f"{table}.csv").is_file():
                    one.change(folder / f"{table}.csv", draw)
            if (after := files_of(folder)) != before:
                done.append(one)
            before = after
        return source, table, done if before != untouched else []


def files_of(folder: Path) -> dict[str, bytes | str]:
    """Return the bytes of every file, and what is there that is none."""
    return {
        path.name: "a link" if path.is_symlink() else path.read_bytes() if path.is_file() else "a folder"
        for path in sorted(folder.iterdir())
    }
