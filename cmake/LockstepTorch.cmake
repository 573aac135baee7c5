# LibTorch: the user's own through CMAKE_PREFIX_PATH or Torch_DIR, else a Python's wheel. Shared by the build, which takes
# LOCKSTEP_TORCH_VERSION or newer, and by the installed LockstepConfig.cmake, which takes the version that it was built with.
# lockstep_problem says what is wrong.
include(${CMAKE_CURRENT_LIST_DIR}/LockstepWheel.cmake)
set(lockstep_named_by Torch_DIR)
if(NOT Torch_DIR)
  # The suffix Torch is for what torch.utils.cmake_prefix_path says.
  find_path(
    Torch_DIR
    TorchConfig.cmake
    PATHS ${CMAKE_PREFIX_PATH}
    ENV CMAKE_PREFIX_PATH
    PATH_SUFFIXES share/cmake/Torch Torch
    NO_DEFAULT_PATH
  )
  set(lockstep_named_by CMAKE_PREFIX_PATH)
endif()
if(NOT Torch_DIR)
  lockstep_find_wheel(torch lockstep_torch_dir lockstep_named_by)
  if(lockstep_torch_dir)
    set(Torch_DIR ${lockstep_torch_dir}/share/cmake/Torch CACHE PATH "LibTorch's CMake package" FORCE)
  endif()
endif()
if(NOT Torch_DIR)
  set(
    lockstep_problem
    "LibTorch ${LOCKSTEP_TORCH_VERSION} was not found. In a checkout of Lockstep run scripts/setup; or \
activate a Python environment that has torch ${LOCKSTEP_TORCH_VERSION}, or pass -DCMAKE_PREFIX_PATH=/path/to/libtorch."
  )
  return()
endif()

get_filename_component(lockstep_torch_root ${Torch_DIR}/../../.. ABSOLUTE)
set(Torch_VERSION)
if(EXISTS ${Torch_DIR}/TorchConfigVersion.cmake)
  file(STRINGS ${Torch_DIR}/TorchConfigVersion.cmake Torch_VERSION REGEX "PACKAGE_VERSION \"")
  string(REGEX REPLACE "[^\"]*\"([0-9.]*).*" "\\1" Torch_VERSION "${Torch_VERSION}")
endif()
string(REGEX MATCH "^[0-9]+[.][0-9]+" lockstep_torch_series "${Torch_VERSION}")
if(LOCKSTEP_INSTALLED AND NOT lockstep_torch_series STREQUAL LOCKSTEP_TORCH_VERSION)
  set(lockstep_problem "this Lockstep was built with LibTorch ${LOCKSTEP_TORCH_VERSION}")
elseif(NOT Torch_VERSION VERSION_GREATER_EQUAL LOCKSTEP_TORCH_VERSION)
  set(lockstep_problem "Lockstep needs LibTorch ${LOCKSTEP_TORCH_VERSION} or newer")
endif()
if(lockstep_problem)
  set(
    lockstep_problem
    "LibTorch ${Torch_VERSION} in ${lockstep_torch_root}, named by ${lockstep_named_by}, cannot be used: \
${lockstep_problem}. Name another one with -DCMAKE_PREFIX_PATH=/path/to/libtorch."
  )
  if(LOCKSTEP_INSTALLED AND Torch_VERSION VERSION_GREATER_EQUAL LOCKSTEP_OLDEST_TORCH)
    # C++ code fits the series that it was compiled with, and no other.
    string(
      APPEND lockstep_problem
      " Or build Lockstep for this one, in its sources: cmake -S . -B build-other -DCMAKE_BUILD_TYPE=Release \
-DLOCKSTEP_TESTS=OFF -DCMAKE_PREFIX_PATH=${lockstep_torch_root} && cmake --build build-other && \
cmake --install build-other --prefix /another/prefix."
    )
  endif()
  unset(Torch_DIR CACHE)
  return()
endif()

# A LibTorch built with CUDA, such as PyPI's default wheel, has a CMake package that refuses a machine without the CUDA
# toolkit. Nothing of ours is compiled for GPUs, so its headers and libraries are taken as they lie.
# LOCKSTEP_CUDA=OFF leaves the half for GPUs out: such a build runs on the wheel's libtorch_cpu without NVIDIA's packages.
option(LOCKSTEP_CUDA "Link the CUDA half of a LibTorch that has one" ON)
set(LOCKSTEP_TORCH_CUDA)
if(EXISTS ${lockstep_torch_root}/lib/libtorch_cuda.so AND NOT LOCKSTEP_CUDA)
  set(TORCH_INCLUDE_DIRS ${lockstep_torch_root}/include ${lockstep_torch_root}/include/torch/csrc/api/include)
elseif(EXISTS ${lockstep_torch_root}/lib/libtorch_cuda.so)
  set(LOCKSTEP_TORCH_CUDA ${lockstep_torch_root}/lib/libtorch_cuda.so)
  set(TORCH_INCLUDE_DIRS ${lockstep_torch_root}/include ${lockstep_torch_root}/include/torch/csrc/api/include)
  # NCCL's and CUDA's headers lie in the wheels that torch's depends on, or in a toolkit. Without them there is no
  # backend nccl.
  file(GLOB lockstep_nvidia_includes ${lockstep_torch_root}/../nvidia/*/include ${lockstep_torch_root}/../nvidia/*/include/cccl)
  find_path(LOCKSTEP_NCCL_INCLUDE nccl.h PATHS ${lockstep_nvidia_includes} /usr/local/cuda/include)
  find_path(LOCKSTEP_CUDA_INCLUDE cuda_runtime_api.h PATHS ${lockstep_nvidia_includes} /usr/local/cuda/include)
  # CUDA's headers include these, which torch's wheels do not bring: nvidia-cuda-crt and nvidia-cuda-cccl.
  find_path(LOCKSTEP_CUDA_CRT crt/host_config.h PATHS ${lockstep_nvidia_includes} /usr/local/cuda/include)
  find_path(LOCKSTEP_CUDA_CCCL nv/target PATHS ${lockstep_nvidia_includes} /usr/local/cuda/include /usr/local/cuda/include/cccl)
  if(LOCKSTEP_NCCL_INCLUDE AND LOCKSTEP_CUDA_INCLUDE AND LOCKSTEP_CUDA_CRT AND LOCKSTEP_CUDA_CCCL)
    set(LOCKSTEP_TORCH_NCCL_INCLUDES ${LOCKSTEP_NCCL_INCLUDE} ${LOCKSTEP_CUDA_INCLUDE} ${lockstep_nvidia_includes})
    list(REMOVE_DUPLICATES LOCKSTEP_TORCH_NCCL_INCLUDES)
  endif()
else()
  set(kineto_LIBRARY torch_cpu CACHE STRING "") # silences LibTorch's only configure warning
  find_package(Torch CONFIG QUIET)
  if(NOT Torch_FOUND)
    set(
      lockstep_problem
      "LibTorch's CMake package in ${Torch_DIR}, named by ${lockstep_named_by}, does not work: \
${Torch_NOT_FOUND_MESSAGE}"
    )
    return()
  endif()
endif()
# MKL's imported target would put junk run paths into every program.
if(TARGET caffe2::mkl)
  set_property(TARGET caffe2::mkl PROPERTY INTERFACE_LINK_DIRECTORIES "")
endif()

# torch's own target forces its library into every program (--no-as-needed); the plain imported libraries do
# not, so that a tool that uses no tensor does not pay 0.2 s to load it. A CUDA build registers its kernels
# from static initializers and does need the forced form.
if(NOT TARGET Lockstep::torch)
  add_library(Lockstep::torch INTERFACE IMPORTED GLOBAL)
  set_target_properties(
    Lockstep::torch
    PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${TORCH_INCLUDE_DIRS}" INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${TORCH_INCLUDE_DIRS}"
  )
  # libtorch_cpu exports a std::filesystem of its own; stdc++ goes first, so that programs which use no tensor but
  # paths do not depend on LibTorch for them.
  if(LOCKSTEP_TORCH_CUDA)
    target_compile_definitions(Lockstep::torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO USE_RPC USE_TENSORPIPE)
    target_link_libraries(
      Lockstep::torch
      INTERFACE
        stdc++
        -Wl,--no-as-needed,${LOCKSTEP_TORCH_CUDA},--as-needed
        ${lockstep_torch_root}/lib/libtorch_cpu.so
        ${lockstep_torch_root}/lib/libc10_cuda.so
        ${lockstep_torch_root}/lib/libc10.so
    )
  elseif(TARGET torch_cpu)
    target_link_libraries(Lockstep::torch INTERFACE stdc++ torch_cpu c10)
  else()
    target_compile_definitions(Lockstep::torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO USE_RPC USE_TENSORPIPE)
    target_link_libraries(
      Lockstep::torch
      INTERFACE stdc++ ${lockstep_torch_root}/lib/libtorch_cpu.so ${lockstep_torch_root}/lib/libc10.so
    )
  endif()
endif()
