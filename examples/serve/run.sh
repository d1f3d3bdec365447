memfit measure -q --no-report -f -o memfit-runs/first -- python job.py 40
memfit measure -q --no-report -f -o memfit-runs/second -- python job.py 60
memfit serve memfit-runs > memfit-runs/address.txt & server=$!
python ask.py memfit-runs/address.txt
kill $server; wait $server || true
