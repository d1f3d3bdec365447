#!/bin/sh
# Bundles the chart libraries of package.json into charts.min.js, with their style and licences beside it; needs node and npm.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$here/package.json" "$here/charts.mjs" "$work/"
cd "$work"
npm install --no-package-lock --no-audit --no-fund --silent
node_modules/.bin/esbuild charts.mjs --bundle --minify --format=iife --global-name=MemfitCharts --target=es2020 \
  --legal-comments=none --define:process.env.NODE_ENV='"production"' --outfile="$here/charts.min.js" --log-level=warning
cp node_modules/uplot/dist/uPlot.min.css "$here/uPlot.min.css"
cp node_modules/echarts/LICENSE "$here/LICENSE.echarts.txt"
cp node_modules/echarts/NOTICE "$here/NOTICE.echarts.txt"
cp node_modules/zrender/LICENSE "$here/LICENSE.zrender.txt"
cp node_modules/tslib/LICENSE.txt "$here/LICENSE.tslib.txt"
cp node_modules/uplot/LICENSE "$here/LICENSE.uPlot.txt"
printf '%s bytes, %s compressed\n' "$(wc -c < "$here/charts.min.js")" "$(gzip -9c "$here/charts.min.js" | wc -c)"
