python make_snapshot.py
memfit replay snapshot.pickle
