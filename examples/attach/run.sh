python grow.py &
memfit attach $! --for 2s --no-report -f -o memfit-runs/attached
kill $!
