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

# A LibTorch built with CUDA, such as PyPI's default wheel, has a CMake package that refuses a machine without the CUDA
# toolkit. Nothing of ours is compiled for GPUs, so its headers and libraries are taken as they lie.
if(Torch_DIR)
  get_filename_component(lockstep_torch_root ${Torch_DIR}/../../.. ABSOLUTE)
endif()
if(Torch_DIR AND EXISTS ${lockstep_torch_root}/lib/libtorch_cuda.so)
  set(LOCKSTEP_TORCH_CUDA ${lockstep_torch_root}/lib/libtorch_cuda.so)
  include(${Torch_DIR}/TorchConfigVersion.cmake)
  set(Torch_VERSION ${PACKAGE_VERSION})
  if(Torch_VERSION VERSION_GREATER_EQUAL 2.13)
    set(Torch_FOUND TRUE)
  endif()
  set(TORCH_INCLUDE_DIRS ${lockstep_torch_root}/include ${lockstep_torch_root}/include/torch/csrc/api/include)
  # NCCL's and CUDA's headers lie in the wheels that torch's depends on, or in a toolkit. Without them there is no
  # backend nccl.
  file(GLOB lockstep_nvidia_includes ${lockstep_torch_root}/../nvidia/*/include ${lockstep_torch_root}/../nvidia/*/include/cccl)
  find_path(LOCKSTEP_NCCL_INCLUDE nccl.h PATHS ${lockstep_nvidia_includes} /usr/local/cuda/include)
  find_path(LOCKSTEP_CUDA_INCLUDE cuda_runtime_api.h PATHS ${lockstep_nvidia_includes} /usr/local/cuda/include)
  # CUDA's headers include these, which torch's wheels do not bring: nvidia-cuda-crt and nvidia-cuda-cccl.
  find_path(LOCKSTEP_CUDA_CRT crt/host_config.h PATHS ${lockstep_nvidia_includes} /usr/local/cuda/include)
  find_path(LOCKSTEP_CUDA_CCCL nv/target PATHS ${lockstep_nvidia_includes} /usr/local/cuda/include
            /usr/local/cuda/include/cccl)
  if(LOCKSTEP_NCCL_INCLUDE AND LOCKSTEP_CUDA_INCLUDE AND LOCKSTEP_CUDA_CRT AND LOCKSTEP_CUDA_CCCL)
    set(LOCKSTEP_TORCH_NCCL_INCLUDES ${LOCKSTEP_NCCL_INCLUDE} ${LOCKSTEP_CUDA_INCLUDE} ${lockstep_nvidia_includes})
    list(REMOVE_DUPLICATES LOCKSTEP_TORCH_NCCL_INCLUDES)
  endif()
else()
  set(kineto_LIBRARY torch_cpu CACHE STRING "")  # silences LibTorch's only configure warning
  find_package(Torch 2.13 QUIET)
endif()
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
  if(LOCKSTEP_TORCH_CUDA)
    target_compile_definitions(Lockstep::torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO USE_RPC USE_TENSORPIPE)
    target_link_libraries(Lockstep::torch INTERFACE stdc++ -Wl,--no-as-needed,${LOCKSTEP_TORCH_CUDA},--as-needed
      ${lockstep_torch_root}/lib/libtorch_cpu.so ${lockstep_torch_root}/lib/libc10_cuda.so
      ${lockstep_torch_root}/lib/libc10.so)
    target_link_options(Lockstep::torch INTERFACE -Wl,-rpath,${lockstep_torch_root}/lib)
  else()
    target_link_libraries(Lockstep::torch INTERFACE stdc++ torch_cpu c10)
  endif()
endif()
