// Tokens of vision transformers: patches, class token and positions become rows, and sums over images in their order.
#include "nn/src/cuda/elements.cuh"
#include "vision/src/cuda/kernels.hpp"

namespace tessera::vision::cuda {

namespace {

template <typename T>
__global__ void place_rows(const TokenRows a, std::size_t count) {
  const std::size_t row = a.tokens * a.dim;
  for (std::size_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
    const std::size_t image = i / row;
    const std::size_t at = i % row;  // token and column
    const T value = at < a.dim ? static_cast<const T*>(a.cls_token)[at]
                               : static_cast<const T*>(a.patches)[i - (image + 1) * a.dim];
    static_cast<T*>(a.y)[i] = to_element<T>(to_float(value) + to_float(static_cast<const T*>(a.positions)[at]));
  }
}

template <typename T>
__global__ void sum_tokens(const TokenGradientRows a) {
  const std::size_t row = a.tokens * a.dim;
  for (std::size_t i = thread_of_grid(); i < row; i += threads_of_grid()) {
    float sum = 0.0f;
    for (std::size_t image = 0; image < a.images; ++image) {
      const T dy = static_cast<const T*>(a.dy)[image * row + i];
      sum = sum + to_float(dy);
      if (i >= a.dim) static_cast<T*>(a.dpatches)[image * row + i - (image + 1) * a.dim] = dy;
    }
    if (a.dposition != nullptr) static_cast<T*>(a.dposition)[i] = to_element<T>(sum);
    if (i < a.dim && a.dcls != nullptr) static_cast<T*>(a.dcls)[i] = to_element<T>(sum);
  }
}

template <typename T>
__global__ void take_first_rows(const ClassTokenRows a, std::size_t count) {
  for (std::size_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
    static_cast<T*>(a.to)[i] = static_cast<const T*>(a.from)[i / a.dim * a.tokens * a.dim + i % a.dim];
  }
}

template <typename T>
__global__ void give_first_rows(const ClassTokenRows a, std::size_t count) {
  for (std::size_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
    const std::size_t row = i / a.dim;
    const bool first = row % a.tokens == 0;
    static_cast<T*>(a.to)[i] =
        first ? static_cast<const T*>(a.from)[row / a.tokens * a.dim + i % a.dim] : to_element<T>(0.0f);
  }
}

}  // namespace

void place_tokens(void* native, const TokenRows& a) {
  const std::size_t count = a.images * a.tokens * a.dim;
  if (count == 0) return;
  for_element(a.format, [&](auto type) {
    launch(native, blocks_for(count), place_rows<typename decltype(type)::Element>, a, count);
  });
}

void token_gradients(void* native, const TokenGradientRows& a) {
  for_element(a.format, [&](auto type) {
    launch(native, blocks_for(a.tokens * a.dim), sum_tokens<typename decltype(type)::Element>, a);
  });
}

void class_tokens(void* native, const ClassTokenRows& a) {
  const std::size_t count = a.sequences * a.dim * (a.give ? a.tokens : 1);
  if (count == 0) return;
  for_element(a.format, [&](auto type) {
    using T = typename decltype(type)::Element;
    launch(native, blocks_for(count), a.give ? give_first_rows<T> : take_first_rows<T>, a, count);
  });
}

}  // namespace tessera::vision::cuda
