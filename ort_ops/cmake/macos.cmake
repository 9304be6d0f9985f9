# Compiles for macOS on ARM on any machine.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(CMAKE_CXX_COMPILER_TARGET aarch64-macos)
set(CMAKE_INSTALL_NAME_TOOL true)  # renames libraries that are installed: none is
include(${CMAKE_CURRENT_LIST_DIR}/zig.cmake)
