"""The tables of a tiny hospital in MIMIC-III's form, as lines of CSV."""

from __future__ import annotations

TABLES = {
    "PATIENTS": [
        "row_id,subject_id,gender,dob,dod,expire_flag",
        "1,1,F,2090-05-01 00:00:00,,0",
        "2,2,M,1851-01-01 00:00:00,2151-02-01 00:00:00,1",
    ],
    "ADMISSIONS": [
        (
            "row_id,subject_id,hadm_id,admittime,dischtime,deathtime,insurance,language,religion,marital_status,"
            "ethnicity,hospital_expire_flag"
        ),
        "1,1,11,2150-03-01 10:00:00,2150-03-04 09:00:00,,Medicare,ENGL,CATHOLIC,MARRIED,WHITE,0",
        "2,1,10,2150-01-01 10:00:00,2150-01-02 11:00:00,,Medicare,,,,UNKNOWN,0",
        "3,2,20,2151-01-30 08:00:00,2151-02-01 12:00:00,2151-02-01 12:00:00,Private,ENGL,NONE,SINGLE,ASIAN,1",
    ],
    "DIAGNOSES_ICD": [
        "row_id,subject_id,hadm_id,seq_num,icd9_code",
        "1,1,10,1,4280",
        "2,1,10,2,25000",
        "3,1,11,1,42820",
        "4,2,20,1,5849",
    ],
    "PROCEDURES_ICD": ["row_id,subject_id,hadm_id,seq_num,icd9_code", "1,1,11,1,3995", "2,1,10,1,3893"],
    "PRESCRIPTIONS": [
        "row_id,subject_id,hadm_id,startdate,enddate,drug_type,drug,ndc",
        "1,1,10,2150-01-01 00:00:00,2150-01-02 00:00:00,MAIN,Furosemide,0",
        "2,1,11,2150-03-01 00:00:00,,MAIN,Insulin,",
        "3,2,20,2151-01-30 00:00:00,,MAIN,Heparin,",
    ],
}
