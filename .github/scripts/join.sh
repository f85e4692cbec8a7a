#!/usr/bin/env bash
# Receipts of several machines together: kept in EARLIER, listed, and drawn over time.
#
#   EARLIER=history NEW=downloaded OUT=joined .github/scripts/join.sh
#
# EARLIER (receipts/history) is the folder that the next night reads; NEW (receipts/new) holds this
# night's receipts in any depth; OUT (receipts/joined) gets database, picture and a Parquet file.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

EARLIER=${EARLIER:-receipts/history} NEW=${NEW:-receipts/new} OUT=${OUT:-receipts/joined}
SUMMARY=${GITHUB_STEP_SUMMARY:-$OUT/summary.md}
mkdir -p "$EARLIER" "$OUT"
# Names hold preset, arms and time; two machines that started in one second keep both.
find "$NEW" -name '*.receipt.json' | sort | while read -r file; do
  digest=$(cksum <"$file" | cut -d ' ' -f 1)
  cp "$file" "$EARLIER/$(basename "$file" .receipt.json)-$digest.receipt.json"
done
rm -f "$OUT/history.duckdb"
driver history add "$EARLIER" --db "$OUT/history.duckdb" || true # bad ones are named
driver history plot "$OUT/trend.svg" --db "$OUT/history.duckdb"
driver history export "$OUT/receipts.parquet" --db "$OUT/history.duckdb"
{
  printf '### The last runs of all machines\n\n```\n'
  driver history list --last 20 --db "$OUT/history.duckdb"
  printf '```\n'
} >>"$SUMMARY"
