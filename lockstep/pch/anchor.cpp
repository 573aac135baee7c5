// Owns a precompiled header; see CMakeLists.txt.
