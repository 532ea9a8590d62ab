"""The tables of a tiny made-up eICU folder, as lines of CSV."""

from __future__ import annotations

TABLES = {
    "patient": [
        (
            "patientunitstayid,patienthealthsystemstayid,gender,age,ethnicity,hospitalid,wardid,hospitaladmittime24,"
            "hospitaladmitoffset,hospitaldischargeyear,hospitaldischargeoffset,hospitaldischargestatus,unittype,"
            "unitvisitnumber,unitdischargeoffset,unitdischargestatus,uniquepid"
        ),
        # One hospital stay with two unit stays: four days, the second unit a day after the first.
        "101,10,Female,> 89,Caucasian,59,91,23:36:00,-60,2014,5700,Alive,MICU,1,1440,Alive,p-1",
        "102,10,Female,> 89,Caucasian,59,91,23:36:00,-1500,2014,4260,Alive,CCU-CTICU,2,600,Alive,p-1",
        # A later year, and two stays of one year.
        "201,20,Female,> 89,Caucasian,60,92,08:00:00,-10,2015,1430,Expired,SICU,1,1430,Expired,p-1",
        "301,30,Male,54,Other/Unknown,59,91,10:00:00,-5,2015,2875,Alive,MICU,1,700,Alive,p-2",
        "401,40,Male,54,,59,91,11:00:00,-5,2015,10075,,MICU,1,900,Alive,p-2",
    ],
    "diagnosis": [
        "diagnosisid,patientunitstayid,activeupondischarge,diagnosisoffset,diagnosisstring,icd9code,diagnosispriority",
        '1,101,True,30,cardiovascular|chf,"428.0, I50.9",Primary',
        '2,102,True,60,pulmonary|pneumonia,"486, J18.9",Major',
        "3,201,True,20,infectious diseases|sepsis,038.9,Primary",
        '4,201,True,5000,cardiovascular|arrest,"427.5, I46.9",Primary',
        '5,301,True,10,burns/trauma|no code,"",Other',
        '6,401,True,10,endocrine|diabetes,"250.00, E11.9",Other',
    ],
    "medication": [
        (
            "medicationid,patientunitstayid,drugorderoffset,drugstartoffset,drugordercancelled,drugname,drughiclseqno,"
            "routeadmin"
        ),
        "1,101,10,15,No,FUROSEMIDE 40 MG PO TABS,3660,PO",
        "2,102,10,15,No,,3660,IV",
        "3,201,10,15,Yes,HEPARIN SODIUM,2807,IV",
        "4,201,10,9000,No,INSULIN REGULAR,768,SC",
        "5,301,10,15,No,,99999,PO",
        "6,301,10,15,No,SODIUM CHLORIDE 0.9% FLUSH,8255,IV",
        "7,401,10,15,No,aspirin 81 mg,1820,PO",
    ],
    "infusionDrug": [
        "infusiondrugid,patientunitstayid,infusionoffset,drugname,drugrate",
        "1,201,30,Norepinephrine (mcg/min),4",
    ],
    "admissionDrug": [
        "admissiondrugid,patientunitstayid,drugoffset,drugname,drughiclseqno",
        "1,301,5,LASIX                    ,3660",
    ],
    "treatment": [
        "treatmentid,patientunitstayid,treatmentoffset,treatmentstring,activeupondischarge",
        "1,101,100,pulmonary|ventilation and oxygenation|mechanical ventilation,False",
        "2,101,100,cardiovascular|arrhythmias|digoxin,False",
        "3,201,100,renal|dialysis|hemodialysis,True",
    ],
}
