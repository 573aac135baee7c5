# LibTorch: the user's own through CMAKE_PREFIX_PATH (or Torch_DIR), else the wheel in .venv.
# Shared by the build and by the installed LockstepConfig.cmake.
if(NOT Torch_DIR)
  find_path(LOCKSTEP_TORCH_PREFIX NAMES share/cmake/Torch/TorchConfig.cmake
    PATHS ${CMAKE_PREFIX_PATH} ENV CMAKE_PREFIX_PATH NO_DEFAULT_PATH)
  mark_as_advanced(LOCKSTEP_TORCH_PREFIX)
  if(LOCKSTEP_TORCH_PREFIX)
    set(Torch_DIR ${LOCKSTEP_TORCH_PREFIX}/share/cmake/Torch CACHE PATH "LibTorch's CMake package")
  elseif(EXISTS "${LOCKSTEP_PYTHON}")
    execute_process(COMMAND ${LOCKSTEP_PYTHON} -c
      "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE lockstep_torch_dir OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE lockstep_rc ERROR_QUIET)
    if(lockstep_rc EQUAL 0)
      set(Torch_DIR ${lockstep_torch_dir}/share/cmake/Torch CACHE PATH "LibTorch's CMake package")
    endif()
  endif()
endif()

set(kineto_LIBRARY torch_cpu CACHE STRING "")  # silences LibTorch's only configure warning
find_package(Torch 2.13 QUIET)
if(NOT Torch_FOUND)
  message(FATAL_ERROR "LibTorch 2.13 was not found. In a checkout of Lockstep run scripts/setup; or pass "
    "-DCMAKE_PREFIX_PATH=/path/to/libtorch.")
endif()
# MKL's imported target would put junk run paths into every program.
if(TARGET caffe2::mkl)
  set_property(TARGET caffe2::mkl PROPERTY INTERFACE_LINK_DIRECTORIES "")
endif()

# torch's own target forces its library into every program (--no-as-needed); the plain imported libraries do
# not, so that a tool that uses no tensor does not pay 0.2 s to load it. A CUDA build registers its kernels
# from static initialisers and does need the forced form.
if(NOT TARGET Lockstep::torch)
  add_library(Lockstep::torch INTERFACE IMPORTED)
  set_target_properties(Lockstep::torch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${TORCH_INCLUDE_DIRS}"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${TORCH_INCLUDE_DIRS}")
  # libtorch_cpu exports a std::filesystem of its own; stdc++ goes first, so that programs which use no tensor but
  # paths do not depend on LibTorch for them.
  if(TARGET torch_cuda)
    target_link_libraries(Lockstep::torch INTERFACE stdc++ torch)
  else()
    target_link_libraries(Lockstep::torch INTERFACE stdc++ torch_cpu c10)
  endif()
endif()
