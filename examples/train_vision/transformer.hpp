// A vision transformer (Dosovitskiy et al. 2021): patches and a class token, blocks in which every token looks at every
// other one, and a linear layer on what the class token has become. Blocks are nn's, with GPT-2's names and its GELU.
#pragma once

#include "tessera/nn/layer_norm.hpp"
#include "tessera/nn/linear.hpp"
#include "tessera/nn/patch_embedding.hpp"
#include "tessera/nn/transformer_block.hpp"
#include "train_vision/stage.hpp"

namespace examples {

// Tokens stand as images that are one pixel wide: [images, tokens, 1, dim].
template <typename T>
class PatchStage final : public Stage<T> {
 public:
  explicit PatchStage(const tessera::nn::PatchShape& shape) : patches_(shape) {}

  void visit(tessera::ModuleVisitor& visitor) override { patches_.visit(visitor); }
  tessera::nn::ImageView<T> push_result(tessera::nn::ActivationStack& stack,
                                        tessera::nn::ConstImageView<T> x) const override;
  void forward(tessera::nn::LayerWindow window, tessera::nn::ActivationStack& stack, tessera::nn::ImageView<const T> x,
               tessera::nn::ImageView<T> y) override;
  void backward(tessera::nn::LayerWindow window, tessera::nn::ActivationStack& stack, tessera::nn::ImageView<T> dy,
                tessera::nn::ImageView<T> dx) override;

 private:
  tessera::nn::PatchEmbedding<T> patches_;
  typename tessera::nn::PatchEmbedding<T>::Saved saved_;
};

template <typename T>
class TransformerStage final : public Stage<T> {
 public:
  TransformerStage(const tessera::nn::TransformerShape& shape, std::size_t index) : block_(shape, index) {}

  void visit(tessera::ModuleVisitor& visitor) override { block_.visit(visitor); }
  tessera::nn::ImageView<T> push_result(tessera::nn::ActivationStack& stack,
                                        tessera::nn::ConstImageView<T> x) const override;
  void forward(tessera::nn::LayerWindow window, tessera::nn::ActivationStack& stack, tessera::nn::ImageView<const T> x,
               tessera::nn::ImageView<T> y) override;
  void backward(tessera::nn::LayerWindow window, tessera::nn::ActivationStack& stack, tessera::nn::ImageView<T> dy,
                tessera::nn::ImageView<T> dx) override;

 private:
  tessera::nn::TransformerBlock<T> block_;
  typename tessera::nn::TransformerBlock<T>::Saved saved_;
};

template <typename T>
class ClassTokenHead final : public Head<T> {
 public:
  ClassTokenHead(std::size_t dim, std::size_t classes, float label_smoothing);

  void visit(tessera::ModuleVisitor& visitor) override;  // "norm", "head"

 private:
  void compute(tessera::nn::LayerWindow window, tessera::nn::ActivationStack& stack, tessera::nn::ImageView<const T> x,
               tessera::nn::MatrixView<T> logits) override;
  void differentiate(tessera::nn::LayerWindow window, tessera::nn::ActivationStack& stack,
                     tessera::nn::MatrixView<const T> dlogits, tessera::nn::ImageView<T> dx) override;

  tessera::nn::LayerNorm<T> norm_;
  tessera::nn::Linear<T> head_;
  std::size_t dim_;
  typename tessera::nn::LayerNorm<T>::Saved saved_norm_;
  typename tessera::nn::Linear<T>::Saved saved_head_;
};

}  // namespace examples
