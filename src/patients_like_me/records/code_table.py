"""The codes of all visits as columns of numbers, from the gathering of events to the file of the cohort.

A large cohort has tens of millions of codes and a few hundred different ones. They become text where somebody looks at
them; a Parquet file stores numbers and a list of texts anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.records.cohort import CODE_COLUMNS, TIME

#: Marks a missing time; it sorts after every real one.
NO_TIME: Final = np.iinfo(np.int64).max
#: From so many rows on, writing the columns as they are saves more time than loading the library for it takes.
_MANY: Final = 1_000_000
_PIECE: Final = 1 << 16


@dataclass(frozen=True)
class CodeTable:
    """Visit, number of the code and time (NO_TIME for none) in order of visit and code; ``texts`` names the numbers.

    >>> given = pl.DataFrame({"visit": [0, 1, 1], "code": ["108", "108", "49"], "time": None}, schema=CODE_COLUMNS)
    >>> table = CodeTable.of(given)
    >>> table.code.tolist(), table.present().to_list(), table.frame().equals(given)
    ([0, 0, 1], ['108', '49'], True)
    """

    visit: npt.NDArray[np.uint32]
    code: npt.NDArray[np.uint32]
    time: npt.NDArray[np.int64]
    texts: pl.Series

    @classmethod
    def of(cls, frame: pl.DataFrame) -> CodeTable:
        """Take a frame of visits, codes and times."""
        texts = frame["code"].unique().sort()
        number = frame["code"].cast(pl.Enum(texts)).to_physical().cast(pl.UInt32)
        time = frame["time"].cast(pl.Int64).fill_null(NO_TIME)
        return cls(frame["visit"].to_numpy(), number.to_numpy(), time.to_numpy(), texts)

    @property
    def height(self) -> int:
        """The number of rows."""
        return len(self.visit)

    def present(self) -> pl.Series:
        """Return the codes that occur, in order."""
        occurs = np.zeros(len(self.texts), dtype=np.bool_)
        # In pieces: numpy makes wide numbers of an index before it uses it.
        for start in range(0, self.height, _PIECE):
            occurs[self.code[start : start + _PIECE]] = True
        return self.texts.gather(np.flatnonzero(occurs))

    def frame(self) -> pl.DataFrame:
        """Return the table with codes as text and times as times."""
        time = pl.Series("time", self.time)
        if self._lacks_times():
            time = time.set(time == NO_TIME, None)
        columns = [pl.Series("visit", self.visit), self.texts.gather(self.code).alias("code"), time.cast(TIME)]
        return pl.DataFrame(columns).cast(CODE_COLUMNS)

    def moved(self, new: npt.NDArray[np.int64]) -> CodeTable:
        """Return the rows of visits that have a new number (not -1); the new numbers are in the order of the old."""
        visit = new[self.visit]
        kept = visit >= 0
        return CodeTable(visit[kept].astype(np.uint32), self.code[kept], self.time[kept], self.texts)

    def write(self, path: Path) -> None:
        """Write the table as Parquet: whole numbers, text, and times of microseconds."""
        if self.height < _MANY:
            self.frame().write_parquet(path, compression="lz4", statistics=False)
            return
        import pyarrow as pa
        import pyarrow.parquet as parquet

        missing = self.time == NO_TIME if self._lacks_times() else None
        texts = pa.array(self.texts.to_list(), pa.string())
        codes = pa.DictionaryArray.from_arrays(pa.array(self.code.view(np.int32)), texts)
        columns = {
            "visit": pa.array(self.visit),
            "code": codes,
            "time": pa.array(self.time, mask=missing).view(pa.timestamp("us")),
        }
        parquet.write_table(
            pa.table(columns),
            path,
            compression="lz4",
            write_statistics=False,
            # Times as they are: split by the place of their bytes they are written faster, and read half as fast.
            use_dictionary=["code"],
            # Without a schema of its own the codes are read as text.
            store_schema=False,
        )

    def _lacks_times(self) -> bool:
        return bool(self.height) and int(self.time.max()) == NO_TIME
