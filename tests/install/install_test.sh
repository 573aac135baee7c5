#!/usr/bin/env bash
# Usage: install_test.sh CMAKE BUILD_DIR APP_DIR CXX SANITIZE
# Installs the build into an empty prefix, then configures, builds and runs the outside program against it.
set -euo pipefail
cmake=$1 build=$2 app=$3 cxx=$4 sanitize=$5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$cmake" --install "$build" --prefix "$work/prefix" >"$work/install.log" || { cat "$work/install.log"; exit 1; }
# The program in README.md, as it stands there.
awk '/^```cpp/ {inside = 1; next} /^```/ {inside = 0} inside' "$app/../../../README.md" >"$work/readme.cpp"
"$cmake" -G Ninja -S "$app" -DREADME_PROGRAM="$work/readme.cpp" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_CXX_COMPILER="$cxx" \
  -DCMAKE_CXX_FLAGS="${sanitize:+-fsanitize=$sanitize}"
"$cmake" --build "$work/build"
if grep -rIl "$build" "$work/prefix/lib/cmake" "$work/prefix/include"; then
  echo "The installed files above name the build directory."
  exit 1
fi

expect() {
  local wanted=$1 got
  shift
  got=$("$@")
  [[ $got == "$wanted" ]] || { printf 'Expected "%s" from %s, got "%s".\n' "$wanted" "$*" "$got"; exit 1; }
}
"$work/prefix/bin/lockrun" --standalone --nproc-per-node 2 "$work/build/readme"
expect "gradient 2" "$work/build/app"
expect $'gradient 3\ngradient 3' "$work/prefix/bin/lockrun" --standalone --nproc-per-node 2 --prefix off "$work/build/app"
