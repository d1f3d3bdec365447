memfit doctor
