"""The tables of a tiny made-up OMOP source and of a tiny vocabulary, as lines of CSV."""

from __future__ import annotations

TABLES = {
    "cdm_source": ["cdm_source_name,cdm_source_abbreviation,cdm_version", "tiny,tiny,v5.4.1"],
    "person": [
        (
            "person_id,gender_concept_id,year_of_birth,month_of_birth,day_of_birth,race_concept_id,ethnicity_concept_id,"
            "race_source_value,ethnicity_source_value"
        ),
        "1,8532,1950,6,15,8527,0,,",
        "-2,8507,1925,,,0,38003563,UNKNOWN,",
        "3,0,1990,1,1,0,0,Martian,",
    ],
    "visit_occurrence": [
        (
            "visit_occurrence_id,person_id,visit_concept_id,visit_start_date,visit_start_datetime,visit_end_date,"
            "visit_end_datetime,care_site_id,discharged_to_concept_id"
        ),
        "10,1,9203,2020-01-01,2020-01-01 08:00:00,2020-01-01,2020-01-01 12:00:00,7,0",
        "11,1,9201,2020-01-01,2020-01-01 12:00:00,2020-01-05,2020-01-05 10:00:00,7,8536",
        # Days without a clock, and a visit that is none of a hospital.
        "12,1,9201,2020-07-01,,2020-07-04,,,0",
        "13,1,9202,2020-02-01,2020-02-01 09:00:00,2020-02-01,2020-02-01 10:00:00,8,0",
        "-20,-2,262,2020-05-01,2020-05-01 09:00:00,2020-05-03,2020-05-03 18:00:00,7,",
        "30,3,9201,2020-05-01,2020-05-01 09:00:00,2020-05-01,,7,",
    ],
    "condition_occurrence": [
        (
            "condition_occurrence_id,person_id,condition_concept_id,condition_start_date,condition_start_datetime,"
            "condition_type_concept_id,visit_occurrence_id,condition_source_value,condition_source_concept_id"
        ),
        "1,1,316139,2020-01-02,2020-01-02 08:00:00,32817,11,I50.9,1001",
        "2,1,0,2020-01-01,2020-01-01 12:00:00,32821,11,25000  ,44824999",
        "3,1,201826,2020-07-02,,32817,12,,0",
        "4,1,4130162,2020-07-02,,32817,12,diabetes of the hospital,0",
        "5,-2,0,2020-05-09,2020-05-09 08:00:00,32817,-20,E785,0",
        "6,-2,0,2020-05-01,,32817,-20,4280,2000000007",
        "7,3,0,2020-05-01,,32817,,I509,0",
        "8,3,0,2020-05-01,,32817,30,E8788,0",
    ],
    "procedure_occurrence": [
        (
            "procedure_occurrence_id,person_id,procedure_concept_id,procedure_date,visit_occurrence_id,"
            "procedure_source_value,procedure_source_concept_id"
        ),
        "1,1,0,2020-01-02,11,5A1D70Z,0",
        "2,1,0,2020-01-02,11,36830,2108296",
        "3,-2,2003000,2020-05-02,-20,dialysis,0",
    ],
    "drug_exposure": [
        (
            "drug_exposure_id,person_id,drug_concept_id,drug_exposure_start_date,drug_exposure_start_datetime,"
            "visit_occurrence_id,drug_source_value,drug_source_concept_id"
        ),
        "1,1,956874,2020-01-02,2020-01-02 09:00:00,11,4711,0",
        "2,1,0,2020-01-02,2020-01-02 10:00:00,11,Aspirin 81 mg,0",
        "3,-2,0,2020-05-02,,-20,00054327099,0",
        "4,-2,0,2020-05-08,2020-05-08 10:00:00,-20,Insulin regular,0",
    ],
    "death": ["person_id,death_date,death_datetime", "-2,2020-05-03,"],
}

#: As Athena delivers them: separated by tabs, and nothing is quoted.
VOCABULARY = {
    "CONCEPT": [
        "concept_id\tconcept_name\tdomain_id\tvocabulary_id\tconcept_class_id\tstandard_concept\tconcept_code",
        '1001\tHeart failure, "unspecified"\tCondition\tICD10CM\t4-char billing code\t\tI50.9',
        "1002\tType 2 diabetes\tCondition\tICD10CM\t3-char nonbill code\t\tE11",
        "1003\tType 2 diabetes without complications\tCondition\tICD10CM\t4-char billing code\t\tE11.9",
        "1004\tSecondary diabetes with two meanings\tCondition\tICD10CM\t4-char billing code\t\tE08.9",
        "201826\tType 2 diabetes\tCondition\tSNOMED\tClinical Finding\tS\t44054006",
        "4130162\tInsulin treated type 2 diabetes\tCondition\tSNOMED\tClinical Finding\tS\t237599002",
        "2003000\tDialysis\tProcedure\tICD10PCS\tICD10PCS\tS\t5A1D70Z",
        "2108296\tCreation of fistula\tProcedure\tCPT4\tCPT4\tS\t36830",
        "956874\tfurosemide 40 MG Oral Tablet\tDrug\tRxNorm\tClinical Drug\tS\t313988",
        "21601461\tHIGH-CEILING DIURETICS, PLAIN\tDrug\tATC\tATC 3rd\tC\tC03C",
        "21600000\tCARDIOVASCULAR SYSTEM\tDrug\tATC\tATC 1st\tC\tC",
    ],
    "CONCEPT_RELATIONSHIP": [
        "concept_id_1\tconcept_id_2\trelationship_id\tvalid_start_date\tinvalid_reason",
        "1002\t201826\tMaps to\t19700101\t",
        "1003\t201826\tMaps to\t19700101\t",
        "1004\t201826\tMaps to\t19700101\t",
        "1004\t316139\tMaps to\t19700101\t",
        "1001\t201826\tMaps to\t19700101\tD",
        "1001\t316139\tMaps to\t19700101\t",
    ],
    "CONCEPT_ANCESTOR": [
        "ancestor_concept_id\tdescendant_concept_id\tmin_levels_of_separation\tmax_levels_of_separation",
        "201826\t4130162\t1\t1",
        "316139\t4130162\t7\t7",
        "21601461\t956874\t3\t4",
        "21600000\t956874\t5\t6",
    ],
}
