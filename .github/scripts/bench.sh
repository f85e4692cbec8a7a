#!/usr/bin/env bash
# A change against its base in one alternated run, and beside earlier nights. Runs anywhere:
#
#   OUT=/tmp/bench BASE=HEAD~1 PRESET=small .github/scripts/bench.sh
#
# Settings, all from the environment:
#   PRESET, ARM, BUDGET  what is run (small, wasm, 10m); ARM is one arm with its options
#   BASE      revision that ARM is also built from; `yesterday`: the newest commit that is a day old;
#             empty, or the same source as HEAD: the arm against itself, which tells of noise
#   REQUIRE   `hardware` makes a software adapter a failure
#   NAME      of this machine and browser (local); names its baseline
#   BASELINE  a receipt's file or digest that stays; default .github/baselines/NAME.receipt.json,
#             where there is one
#   EARLIER   folder of earlier receipts (none)
#   LAST, MARGIN  how many earlier runs count, and what is no change (20, 2%)
#   OUT       folder for everything that this writes (receipts/bench, which git ignores)
#   DRIVER_BROWSER, DRIVER_CACHE as ever
#
# Ends with the run's exit code if that is not 0, else with 1 where a regression was proved.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

PRESET=${PRESET:-small} ARM=${ARM:-wasm} BUDGET=${BUDGET:-10m} BASE=${BASE-yesterday}
NAME=${NAME:-local} LAST=${LAST:-20} MARGIN=${MARGIN:-2%} OUT=${OUT:-receipts/bench}
BASELINE=${BASELINE:-} EARLIER=${EARLIER:-} REQUIRE=${REQUIRE:-}
SUMMARY=${GITHUB_STEP_SUMMARY:-$OUT/summary.md}

say() { printf '\n== %s\n' "$*" >&2; }

mkdir -p "$OUT/receipts"

# --- what is compared with what

if [ "$BASE" = yesterday ]; then
  BASE=$(git rev-list -1 --before='24 hours ago' HEAD)
fi
arms="$ARM,$ARM"
if [ -n "$BASE" ] && ! git diff --quiet "$BASE" HEAD -- wasm_src webgpu_src web; then
  BASE=$(git rev-parse --verify "$BASE^{commit}")
  case $ARM in
    *:*) arms="$ARM+source=$BASE,$ARM" ;;
    *) arms="$ARM:source=$BASE,$ARM" ;;
  esac
fi

# --- one run of both

say "driver run --preset $PRESET --arms $arms --budget $BUDGET"
code=0
touch "$OUT/started"
driver run --preset "$PRESET" --arms "$arms" --budget "$BUDGET" --out "$OUT/receipts" \
  ${REQUIRE:+--require "$REQUIRE"} --quiet || code=$?
receipt=$(find "$OUT/receipts" -name '*.receipt.json' -newer "$OUT/started" | head -n 1)
if [ -z "$receipt" ]; then
  printf '### %s: no receipt, exit code %s\n' "$NAME" "$code" >>"$SUMMARY"
  exit "$((code ? code : 4))"
fi

# --- what it says: a page, a summary, test results

say "reports of $receipt"
driver report "$receipt" "$OUT/report.html" "$OUT/run.md" "$OUT/junit.xml" \
  --html --markdown --junit
{ printf '## %s\n\n' "$NAME" && cat "$OUT/run.md"; } >>"$SUMMARY"

# --- beside earlier runs

# The database is made anew: it holds nothing that the receipts do not, and follows its version.
db=$OUT/history.duckdb
rm -f "$db"
if [ -n "$EARLIER" ] && [ -n "$(find "$EARLIER" -name '*.receipt.json' 2>/dev/null | head -n 1)" ]; then
  say "driver history add $EARLIER"
  driver history add "$EARLIER" --db "$db" || true # bad ones are named, and left out or marked
fi
pinned=.github/baselines/$NAME.receipt.json
if [ -z "$BASELINE" ] && [ -f "$pinned" ]; then BASELINE=$pinned; fi
if [ "$code" -eq 0 ]; then
  say "driver history compare"
  driver history compare "$receipt" --db "$db" --last "$LAST" --margin "$MARGIN" \
    ${BASELINE:+--baseline "$BASELINE"} --markdown >"$OUT/compare.md" || code=$?
  cat "$OUT/compare.md" >>"$SUMMARY"
fi
driver history add "$receipt" --db "$db"
driver history plot "$OUT/trend.svg" --db "$db"
exit "$code"
