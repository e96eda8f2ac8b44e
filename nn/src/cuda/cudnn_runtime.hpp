// cuDNN, opened when something first asks for it and never closed: a build needs its headers only, and programs start
// on machines without it. Its graphs are made by cudnn-frontend, a library of headers, whose symbols go through here.
#pragma once

#include <cudnn.h>

#include <string>

#pragma GCC visibility push(default)

namespace tessera::nn::cuda::cudnn {

struct Runtime {
  std::string missing;   // why it cannot be used; empty when it can
  std::string in_words;  // such as "cuDNN 9.19.0"
};
const Runtime& runtime();

// Both return the calling thread's handle for the current device, with its work going to `native`, a cudaStream_t, or
// where the last call said. They throw Error.
cudnnHandle_t handle();
cudnnHandle_t handle_on(void* native);

}  // namespace tessera::nn::cuda::cudnn

#pragma GCC visibility pop
