# The compiler of PyPI's package ziglang, which has the headers of every system. A program that it
# links takes minutes, as it compiles the C++ library first, so CMake's tests, which link, are skipped.
set(CMAKE_CXX_COMPILER python-zig c++)
set(CMAKE_CXX_COMPILER_WORKS ON)
set(CMAKE_CXX_ABI_COMPILED ON)
set(CMAKE_HAVE_PTHREAD_H ON)
set(CMAKE_HAVE_LIBC_PTHREAD ON)
set(TAMIZ_ARMV8_2 -mcpu=generic)  # its -march takes no name of an architecture
