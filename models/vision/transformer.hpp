// A vision transformer (Dosovitskiy et al. 2021): patches and a class token, blocks in which every token looks at every
// other one, and a linear layer on what the class token has become. Blocks are nn's, with GPT-2's names and its GELU.
#pragma once

#include "models/vision/stage.hpp"
#include "tessera/nn/layer_norm.hpp"
#include "tessera/nn/linear.hpp"
#include "tessera/nn/transformer_block.hpp"
#include "tessera/vision/patch_embedding.hpp"

namespace models {

// Tokens stand as images that are one pixel wide: [images, tokens, 1, dim].
template <typename T>
class PatchStage final : public Stage<T> {
 public:
  explicit PatchStage(const tessera::vision::PatchShape& shape) : patches_(shape) {}

  void visit(tessera::ModuleVisitor& visitor) override { patches_.visit(visitor); }
  tessera::vision::ImageView<T> push_result(nn::ActivationStack& stack,
                                            tessera::vision::ConstImageView<T> x) const override;
  void forward(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<const T> x,
               tessera::vision::ImageView<T> y) override;
  void backward(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<T> dy,
                tessera::vision::ImageView<T> dx) override;
  bool reads_result() const override { return false; }

 private:
  tessera::vision::PatchEmbedding<T> patches_;
  typename tessera::vision::PatchEmbedding<T>::Saved saved_;
};

template <typename T>
class TransformerStage final : public Stage<T> {
 public:
  TransformerStage(const nn::TransformerShape& shape, std::size_t index) : block_(shape, index) {}

  void visit(tessera::ModuleVisitor& visitor) override { block_.visit(visitor); }
  tessera::vision::ImageView<T> push_result(nn::ActivationStack& stack,
                                            tessera::vision::ConstImageView<T> x) const override;
  void forward(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<const T> x,
               tessera::vision::ImageView<T> y) override;
  void backward(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<T> dy,
                tessera::vision::ImageView<T> dx) override;
  bool reads_result() const override { return false; }

 private:
  nn::TransformerBlock<T> block_;
  typename nn::TransformerBlock<T>::Saved saved_;
};

template <typename T>
class ClassTokenHead final : public Head<T> {
 public:
  ClassTokenHead(std::size_t dim, std::size_t classes, float label_smoothing);

  void visit(tessera::ModuleVisitor& visitor) override;  // "norm", "head"

 private:
  void compute(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<const T> x,
               nn::MatrixView<T> logits) override;
  void differentiate(tessera::Window& window, nn::ActivationStack& stack, nn::MatrixView<const T> dlogits,
                     tessera::vision::ImageView<T> dx) override;

  nn::LayerNorm<T> norm_;
  nn::Linear<T> head_;
  std::size_t dim_;
  typename nn::LayerNorm<T>::Saved saved_norm_;
  typename nn::Linear<T>::Saved saved_head_;
};

}  // namespace models
