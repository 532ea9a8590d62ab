"""What is safe to print: names and ids from a hospital's tables, which may hold anything, and counts of people."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

#: Counts of patients or visits under this are not shown on pages that may be handed on.
SMALLEST_SHOWN: Final = 11
#: What is written in their place.
FEW: Final = f"fewer than {SMALLEST_SHOWN}"
_MARKDOWN = re.compile(r"([\\`*_\[\]#|~<>&])")


def printable(text: object) -> str:
    r"""Return text on one line without control characters, which could steer a terminal or break a page.

    >>> printable("dia\x1b[31mbetes\n\u202etype 2")
    'dia [31mbetes type 2'
    """
    return " ".join("".join(sign if sign.isprintable() else " " for sign in str(text)).split())


def form_of(text: object, longest: int = 40) -> str:
    """Return the form of a value from the records without its content: letters become x, digits 9.

    >>> form_of("Mary O'Neill, 123-45-6789"), form_of("31/01/2150 10:30")
    ("xxxx x'xxxxx, 999-99-9999", '99/99/9999 99:99')
    """
    form = "".join("9" if sign.isnumeric() else "x" if sign.isalpha() else sign for sign in printable(text))
    return form if len(form) <= longest else f"{form[:longest]}..."


def printable_lines(text: object) -> str:
    r"""Return text of several lines in which each is safe to print; blanks stay as they are.

    >>> printable_lines("a  b\x1b]0;x\x07\nc")
    'a  b ]0;x \nc'
    """
    return "".join(sign if sign.isprintable() or sign == "\n" else " " for sign in str(text))


def escaped_markdown(text: object) -> str:
    r"""Return text in which nothing is read as Markdown or HTML.

    >>> escaped_markdown("<script>a|b")
    '\\<script\\>a\\|b'
    """
    return _MARKDOWN.sub(r"\\\1", printable(text))


def percent(share: float, digits: int = 0) -> str:
    """Write a share as a percentage.

    >>> percent(0.1234), percent(0.1234, 1)
    ('12 %', '12.3 %')
    """
    return f"{share:.{digits}%}".replace("%", " %")


def percent_of(value: float | None) -> str:
    """Write a probability as a percentage; the ends stay open, for nothing is certain.

    >>> percent_of(0.1064), percent_of(0.9999), percent_of(0.0001), percent_of(None)
    ('10.6 %', 'over 99.9 %', 'under 0.1 %', '–')
    """
    if value is None:
        return "–"
    if value > 0.999:
        return "over 99.9 %"
    return "under 0.1 %" if value < 0.001 else percent(value, 1)


def counted(number: int, one: str, many: str | None = None) -> str:
    """Write a number with its noun.

    >>> counted(1, "reference"), counted(3, "diagnosis", "diagnoses")
    ('1 reference', '3 diagnoses')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def listed(names: Sequence[str]) -> str:
    """Write names as a person says them.

    >>> listed(["R1"]), listed(["R1", "R2", "R3"])
    ('R1', 'R1, R2 and R3')
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def counted_of(number: int, total: int, did: str) -> str:
    """Write how many of so many people did something; ``did`` is worded for several.

    >>> counted_of(4, 10, "were readmitted"), counted_of(1, 10, "were readmitted"), counted_of(1, 10, "had it")
    ('4 of 10 were readmitted', '1 of 10 was readmitted', '1 of 10 had it')
    """
    one = re.sub(r"^were\b", "was", did) if number == 1 else did
    return f"{number} of {total} {one}"


def duration_in_words(seconds: float) -> str:
    """Write a time span as a person says it.

    >>> duration_in_words(42), duration_in_words(600), duration_in_words(9000), duration_in_words(1e6)
    ('42 s', '10 min', '2.5 h', '11.6 days')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


def is_small(count: int) -> bool:
    """Tell whether a count of people is above 0 and too small to be shown.

    >>> is_small(0), is_small(10), is_small(11)
    (False, True, False)
    """
    return 0 < count < SMALLEST_SHOWN


def shown_count(count: int) -> str:
    """Write a count of patients or visits so that no small group can be singled out.

    >>> shown_count(0), shown_count(4), shown_count(1234)
    ('0', 'fewer than 11', '1,234')
    """
    return FEW if is_small(count) else f"{count:,}"


def tells_a_small_count(having: int, total: int) -> bool:
    """Tell whether a share of so many tells that a few have something, or that a few have it not.

    >>> tells_a_small_count(3, 33), tells_a_small_count(30, 33), tells_a_small_count(15, 33)
    (True, True, False)
    """
    return is_small(having) or is_small(total - having)


def shown_share(having: int, total: int, digits: int = 1) -> str:
    """Write a share of all; where it would tell a small count, only that it is one.

    >>> shown_share(15, 60), shown_share(3, 33), shown_share(30, 33)
    ('25.0 % of all', 'fewer than 11 of all 33', 'all but fewer than 11 of all 33')
    """
    if tells_a_small_count(having, total):
        return f"{'' if is_small(having) else 'all but '}{FEW} of all {total:,}"
    return f"{percent(having / total if total else 0.0, digits)} of all"


def about_count(count: int) -> str:
    """Write a count so roughly that a hidden one cannot be worked out from it.

    >>> about_count(1234), about_count(20)
    ('about 1,250', 'fewer than 50')
    """
    return f"about {round(count / 50) * 50:,}" if count >= 50 else "fewer than 50"
