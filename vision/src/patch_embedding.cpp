// Patches, class token and positions. What is placed is small beside the projection, so the loops are plain.
#include "tessera/vision/patch_embedding.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "nn/src/exported.hpp"
#include "nn/src/operation.hpp"
#include "nn/src/rows/active_rows.hpp"
#include "nn/src/shared_rows.hpp"
#include "tessera/base/error.hpp"
#include "vision/src/cuda/kernels.hpp"

namespace tessera::vision {

namespace {

constexpr float token_deviation = 0.02f;

// Tokens of images, and where their parts stand.
template <typename T>
struct TokenPlaces {
  std::size_t images;
  std::size_t tokens;
  std::size_t dim;
  const T* patches;    // [images, tokens - 1, dim]
  const T* cls_token;  // [dim]
  const T* positions;  // [tokens, dim]
  T* y;                // [images, tokens, dim]
};

template <typename T>
void place_tokens(Stream& stream, const TokenPlaces<T>& of) {
  if (on_cuda(stream)) {
    const cuda::TokenRows rows{format_of<T>, of.images,    of.tokens,    of.dim,
                               of.patches,   of.cls_token, of.positions, of.y};
    return issue<T>(stream, "patch embedding", [rows](void* native) { cuda::place_tokens(native, rows); });
  }
  stream.submit([of] {
    const std::size_t row_elements = of.tokens * of.dim;
    parallel::in_shares(shares_of_rows(of.images, row_elements), [&](std::size_t begin, std::size_t end, std::size_t) {
      for (std::size_t at = begin * of.tokens; at < end * of.tokens; ++at) {
        const std::size_t token = at % of.tokens;
        const T* const from = token == 0 ? of.cls_token : of.patches + (at - at / of.tokens - 1) * of.dim;
        for (std::size_t i = 0; i < of.dim; ++i) {
          of.y[at * of.dim + i] = store<T>(load(from[i]) + load(of.positions[token * of.dim + i]));
        }
      }
    });
  });
}

template <typename T>
struct TokenGradients {
  std::size_t images;
  std::size_t tokens;
  std::size_t dim;
  const T* dy;   // [images, tokens, dim]
  T* dpatches;   // [images, tokens - 1, dim]
  T* dcls;       // [dim]; null: not wanted
  T* dposition;  // [tokens, dim]; null: not wanted
};

// Each token's numbers are summed over the images by one thread.
template <typename T>
void sum_token(const TokenGradients<T>& of, std::size_t token) {
  for (std::size_t i = 0; i < of.dim; ++i) {
    Arithmetic<T> sum{};
    for (std::size_t image = 0; image < of.images; ++image) {
      sum += load(of.dy[(image * of.tokens + token) * of.dim + i]);
    }
    if (of.dposition != nullptr) of.dposition[token * of.dim + i] = store<T>(sum);
    if (token == 0 && of.dcls != nullptr) of.dcls[i] = store<T>(sum);
  }
}

template <typename T>
void token_gradients(Stream& stream, const TokenGradients<T>& of) {
  if (on_cuda(stream)) {
    const cuda::TokenGradientRows rows{format_of<T>, of.images,   of.tokens, of.dim,
                                       of.dy,        of.dpatches, of.dcls,   of.dposition};
    return issue<T>(stream, "patch embedding", [rows](void* native) { cuda::token_gradients(native, rows); });
  }
  stream.submit([of] {
    parallel::in_shares(shares_of_rows(of.tokens, of.images * of.dim),
                        [&](std::size_t begin, std::size_t end, std::size_t) {
                          for (std::size_t token = begin; token < end; ++token) sum_token(of, token);
                        });
    for (std::size_t image = 0; image < of.images; ++image) {
      std::copy_n(of.dy + (image * of.tokens + 1) * of.dim, (of.tokens - 1) * of.dim,
                  of.dpatches + image * (of.tokens - 1) * of.dim);
    }
  });
}

template <typename T>
void issue_tokens(Stream& stream, const cuda::ClassTokenRows& rows) {
  issue<T>(stream, "class tokens", [rows](void* native) { cuda::class_tokens(native, rows); });
}

ConvolutionShape projection(const PatchShape& of) {
  if (of.patch.height == 0 || of.patch.width == 0 || of.image.height % of.patch.height != 0 ||
      of.image.width % of.patch.width != 0) {
    throw UsageError(fmt::format("patch embedding: patches of {} x {} do not divide images of {} x {}", of.patch.height,
                                 of.patch.width, of.image.height, of.image.width));
  }
  return {.in = of.channels, .out = of.dim, .kernel = of.patch, .stride = of.patch};
}

template <typename T>
ImageView<T> patches_of(const PatchShape& of, std::size_t images, T* data) {
  return {data, images, of.image.height / of.patch.height, of.image.width / of.patch.width, of.dim};
}

}  // namespace

template <Element T>
PatchEmbedding<T>::PatchEmbedding(const PatchShape& shape)
    : shape_(shape),
      proj_(projection(shape)),
      cls_token_({shape.dim}, Initial::normal(0.0f, token_deviation)),
      pos_embed_({shape.tokens(), shape.dim}, Initial::normal(0.0f, token_deviation)) {}

template <Element T>
void PatchEmbedding<T>::visit(ModuleVisitor& visitor) {
  visitor("proj", proj_);
  visitor("cls_token", cls_token_);
  visitor("pos_embed", pos_embed_);
}

template <Element T>
typename PatchEmbedding<T>::Saved PatchEmbedding<T>::forward(Window& window, ActivationStack& stack,
                                                             ImageView<const T> x, MatrixView<T> y) {
  require_shape("patch embedding: y", y, x.images * shape_.tokens(), shape_.dim);
  const ScratchScope scope(stack);  // the tokens have what the patches became
  const auto patches = patches_of(shape_, x.images, stack.push<T>(x.images * shape_.patches() * shape_.dim).data());
  const Saved saved{proj_.forward(window, stack, x, patches), x.images};
  enqueue(window, place_tokens<T>,
          {.images = x.images,
           .tokens = shape_.tokens(),
           .dim = shape_.dim,
           .patches = patches.data,
           .cls_token = parameter_of<T>(window, cls_token_),
           .positions = parameter_of<T>(window, pos_embed_),
           .y = y.data});
  return saved;
}

template <Element T>
void PatchEmbedding<T>::backward(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<const T> dy,
                                 ImageView<T> dx) {
  const ScratchScope scope(stack);
  const auto dpatches =
      patches_of(shape_, saved.images, stack.push<T>(saved.images * shape_.patches() * shape_.dim).data());
  enqueue(window, token_gradients<T>,
          {.images = saved.images,
           .tokens = shape_.tokens(),
           .dim = shape_.dim,
           .dy = dy.data,
           .dpatches = dpatches.data,
           .dcls = gradient_of<T>(window, cls_token_),
           .dposition = gradient_of<T>(window, pos_embed_)});
  proj_.backward(window, stack, saved.proj, dpatches, dx);
}

template <Element T>
void take_class_tokens(Stream& stream, std::size_t tokens, ConstMatrixView<T> x, MatrixView<T> to) {
  require_shape("class tokens: x", x, to.rows * tokens, to.columns);
  if (on_cuda(stream))
    return issue_tokens<T>(stream, {format_of<T>, false, to.rows, tokens, x.columns, x.data, to.data});
  stream.submit([tokens, x, to] {
    for (std::size_t row = 0; row < to.rows; ++row) {
      std::copy_n(x.data + row * tokens * x.columns, x.columns, to.data + row * x.columns);
    }
  });
}

template <Element T>
void give_class_tokens(Stream& stream, std::size_t tokens, ConstMatrixView<T> dto, MatrixView<T> dx) {
  require_shape("class tokens: dx", dx, dto.rows * tokens, dto.columns);
  if (on_cuda(stream)) {
    return issue_tokens<T>(stream, {format_of<T>, true, dto.rows, tokens, dto.columns, dto.data, dx.data});
  }
  stream.submit([tokens, dto, dx] {
    std::fill_n(dx.data, dx.elements(), T{});
    for (std::size_t row = 0; row < dto.rows; ++row) {
      std::copy_n(dto.data + row * dto.columns, dto.columns, dx.data + row * tokens * dto.columns);
    }
  });
}

#define TESSERA_PATCH_EMBEDDING(T)                                                                           \
  template class PatchEmbedding<T>;                                                                          \
  template TESSERA_EXPORTED void take_class_tokens(Stream&, std::size_t, ConstMatrixView<T>, MatrixView<T>); \
  template TESSERA_EXPORTED void give_class_tokens(Stream&, std::size_t, ConstMatrixView<T>, MatrixView<T>);
TESSERA_FOR_EACH_ELEMENT(TESSERA_PATCH_EMBEDDING)

}  // namespace tessera::vision
