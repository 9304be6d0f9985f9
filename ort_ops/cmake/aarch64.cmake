# Compiles for 64-bit ARM on another Linux; ctest runs the native tests under QEMU.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)  # so that QEMU needs no ARM libraries
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static)
