#!/usr/bin/env bash
# Usage: install_test.sh CMAKE BUILD_DIR APP_DIR CXX SANITIZE
# Installs the build into an empty prefix, then configures, builds and runs the outside program against it.
set -euo pipefail
cmake=$1 build=$2 app=$3 cxx=$4 sanitize=$5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$cmake" --install "$build" --prefix "$work/prefix" >"$work/install.log" || { cat "$work/install.log"; exit 1; }
"$cmake" -G Ninja -S "$app" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_CXX_COMPILER="$cxx" \
  -DCMAKE_CXX_FLAGS="${sanitize:+-fsanitize=$sanitize}"
"$cmake" --build "$work/build"
if grep -rIl "$build" "$work/prefix/lib/cmake" "$work/prefix/include"; then
  echo "The installed files above name the build directory."
  exit 1
fi
"$work/build/app"
