"""The items of TRIPOD+AI, in our own words: what a report on a prediction model has to tell.

Source of the numbers and topics: Collins GS, Moons KGM, Dhiman P, et al. TRIPOD+AI statement: updated guidance for
reporting clinical prediction models that use regression or machine learning methods. BMJ 2024;385:e078378. The wording
here is short and not that of the statement; who fills in a checklist for a journal takes the original.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

SOURCE: Final = "TRIPOD+AI: Collins et al., BMJ 2024;385:e078378; topics in our own words"
#: In this report; partly, so that the authors add the rest; for the authors alone; nothing to tell.
Status = Literal["known", "partly", "gap", "not applicable"]


class Item(NamedTuple):
    """One item: its number in the statement, the part of a paper it belongs to, and what it asks for."""

    number: str
    part: str
    topic: str


class Answer(NamedTuple):
    """What a run knows about an item: words for the report, or what the authors still have to say."""

    status: Status
    words: str


ITEMS: Final = tuple(
    Item(*row)
    for row in (
        ("1", "title", "title names prediction model, population and outcome"),
        ("2", "abstract", "abstract by its own checklist"),
        ("3a", "introduction", "clinical context, reasons, models that exist already"),
        ("3b", "introduction", "for whom the model is, its place in care, its users"),
        ("3c", "introduction", "known inequalities in health between social groups"),
        ("4", "introduction", "aims: development, evaluation or both"),
        ("5a", "methods", "sources of the data, why these, and how representative"),
        ("5b", "methods", "period in which the data arose, end of follow-up"),
        ("6a", "methods", "setting: kind of care, number and place of centres"),
        ("6b", "methods", "who is included and who is not"),
        ("6c", "methods", "treatments received and how they were dealt with"),
        ("7", "methods", "preparation and checks of the data, alike for all groups?"),
        ("8a", "methods", "outcome: definition, horizon, how and when assessed, why this one"),
        ("8b", "methods", "who judged outcomes, where judgement was needed"),
        ("8c", "methods", "blinding of the outcome's assessment"),
        ("9a", "methods", "how predictors were chosen at first"),
        ("9b", "methods", "every predictor: definition, how and when measured"),
        ("9c", "methods", "who judged predictors, where judgement was needed"),
        ("10", "methods", "how the sample size came about, and whether it is enough"),
        ("11", "methods", "missing data: handling, and reasons for leaving data out"),
        ("12a", "methods", "how the data were used and divided"),
        ("12b", "methods", "how predictors enter the model"),
        ("12c", "methods", "kind of model, all steps of building and tuning, internal validation"),
        ("12d", "methods", "differences between clusters such as hospitals: handling"),
        ("12e", "methods", "measures and plots of performance, and why these"),
        ("12f", "methods", "updating of the model after evaluation"),
        ("12g", "methods", "how predictions were computed in the evaluation"),
        ("13", "methods", "methods against class imbalance, and recalibration after them"),
        ("14", "methods", "what was done about fairness"),
        ("15", "methods", "output of the model; classification and its thresholds"),
        ("16", "methods", "differences between development and evaluation data"),
        ("17", "methods", "ethics committee and consent"),
        ("18a", "open science", "funding and the funders' part"),
        ("18b", "open science", "conflicts of interest"),
        ("18c", "open science", "study protocol: where, or that there is none"),
        ("18d", "open science", "registration: where, or that there is none"),
        ("18e", "open science", "availability of the data"),
        ("18f", "open science", "availability of the analysis code"),
        ("19", "public", "part taken by patients and the public, or that there was none"),
        ("20a", "results", "flow of participants, numbers with and without the outcome"),
        ("20b", "results", "characteristics of participants, missing data, differences between groups"),
        ("20c", "results", "evaluation data compared with development data"),
        ("21", "results", "participants and events in every analysis"),
        ("22", "results", "the whole model, so that others can predict with it"),
        ("23a", "results", "performance with intervals, also for key subgroups"),
        ("23b", "results", "performance across clusters, if examined"),
        ("24", "results", "results of updating the model"),
        ("25", "discussion", "interpretation, with fairness and earlier studies"),
        ("26", "discussion", "limitations and what they may do to the results"),
        ("27a", "discussion", "poor or missing input in use: how to notice and handle it"),
        ("27b", "discussion", "what users must do and be able to do"),
        ("27c", "discussion", "next steps of research towards use elsewhere"),
    )
)
