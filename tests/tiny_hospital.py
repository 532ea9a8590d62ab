"""The tables of a tiny hospital in MIMIC-IV's form, as lines of CSV."""

from __future__ import annotations

TABLES = {
    "patients": [
        "subject_id,gender,anchor_age,anchor_year,anchor_year_group,dod",
        "1,F,60,2150,2011 - 2013,",
        "2,M,91,2150,2011 - 2013,2151-02-01",
    ],
    "admissions": [
        "subject_id,hadm_id,admittime,dischtime,deathtime,insurance,language,marital_status,race,hospital_expire_flag",
        "1,11,2150-03-01 10:00:00,2150-03-04 09:00:00,,Medicare,ENGLISH,MARRIED,WHITE,0",
        "1,10,2150-01-01 10:00:00,2150-01-02 11:00:00,,Medicare,?,,UNKNOWN,0",
        "2,20,2151-01-30 08:00:00,2151-02-01 12:00:00,2151-02-01 12:00:00,Other,ENGLISH,SINGLE,ASIAN,1",
    ],
    "diagnoses_icd": [
        "subject_id,hadm_id,seq_num,icd_code,icd_version",
        "1,10,1,4280,9",
        "1,10,2,25000,9",
        "1,11,1,I509,10",
        "1,11,2,I5020,10",
        "2,20,1,ZZZZ,10",
        "9,99,1,I509,10",
    ],
    "procedures_icd": [
        "subject_id,hadm_id,seq_num,chartdate,icd_code,icd_version",
        "1,11,1,2150-03-02,5A1D70Z,10",
        "1,10,1,2150-01-01,3995,9",
    ],
    "prescriptions": [
        "subject_id,hadm_id,starttime,stoptime,drug_type,drug,ndc",
        "1,10,2150-01-01 12:00:00,,MAIN,Furosemide,0",
        "1,10,2150-01-01 11:00:00,,MAIN,Furosemide,0",
        "1,11,2150-03-01 12:00:00,,MAIN,Insulin,",
        "1,11,2150-03-01 12:00:00,,MAIN,Sterile Water,",
        "2,20,,,MAIN,Qzxwv,",
    ],
}
