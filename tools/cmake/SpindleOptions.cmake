# Compiler flags shared by all targets of the project.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

find_program(SPINDLE_CCACHE ccache)
if(SPINDLE_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER "${SPINDLE_CCACHE}")
  set(CMAKE_CXX_COMPILER_LAUNCHER "${SPINDLE_CCACHE}")
endif()

add_library(spindle_warnings INTERFACE)
target_compile_options(
  spindle_warnings
  INTERFACE -Wall
            -Wextra
            -Wpedantic
            -Wshadow
            -Wconversion
            -Wsign-conversion
            -Wnon-virtual-dtor
            -Woverloaded-virtual
            -Wimplicit-fallthrough
            # g++ 12 reports false overlaps inside std::string operator+ (GCC bug 105651).
            $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
            $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>
            # In a unity batch every source looks like a header, whose types must not be local.
            $<$<AND:$<CXX_COMPILER_ID:GNU>,$<BOOL:${CMAKE_UNITY_BUILD}>>:-Wno-subobject-linkage>
            $<$<BOOL:${SPINDLE_WERROR}>:-Werror>)

# Debug builds assert; the release build keeps assertions off and relies on SPINDLE_CHECK.
add_library(spindle_flags INTERFACE)
target_compile_features(spindle_flags INTERFACE cxx_std_20)
if(SPINDLE_SANITIZE)
  string(REPLACE ";" "," spindle_sanitizers "${SPINDLE_SANITIZE}")
  target_compile_options(spindle_flags INTERFACE -fsanitize=${spindle_sanitizers} -fno-omit-frame-pointer
                                                 -fno-sanitize-recover=all)
  target_link_options(spindle_flags INTERFACE -fsanitize=${spindle_sanitizers})
  if("thread" IN_LIST SPINDLE_SANITIZE)
    # libstdc++'s atomic_thread_fence has no TSan model; none of our code relies on one.
    target_compile_options(spindle_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  endif()
endif()
if(SPINDLE_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "SPINDLE_FUZZ needs clang (libFuzzer); configure with the asan preset")
  endif()
  target_compile_options(spindle_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(SPINDLE_LTO)
  set(CMAKE_INTERPROCEDURAL_OPTIMIZATION ON)
endif()
# Drops the unused parts of the text archive; see docs/decisions.
target_link_options(spindle_flags INTERFACE -Wl,--gc-sections)
target_compile_options(spindle_flags INTERFACE -ffunction-sections -fdata-sections)
