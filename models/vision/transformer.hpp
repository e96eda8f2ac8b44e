// A vision transformer (Dosovitskiy et al. 2021): patches and a class token, blocks in which every token looks at every
// other one, and a linear layer on what the class token has become. Blocks are nn's, with GPT-2's names and its GELU.
#pragma once

#include "models/vision/shape.hpp"
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
  std::vector<typename tessera::vision::PatchEmbedding<T>::Saved> saved_;  // by place
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
  // Going back in two: the gradient of y becomes that of x, in its place; then those of parameters are formed.
  void backward_input(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<T> gradient);
  void backward(tessera::Window& window, nn::ActivationStack& stack);

 private:
  nn::TransformerBlock<T> block_;
  std::vector<typename nn::TransformerBlock<T>::Saved> saved_;  // by place, as the other
  std::vector<typename nn::TransformerBlock<T>::Between> between_;
};

template <typename T>
class ClassTokenHead final : public Head<T> {
 public:
  ClassTokenHead(std::size_t dim, std::size_t classes, float label_smoothing);

  void visit(tessera::ModuleVisitor& visitor) override;  // "norm", "head"
  using Head<T>::backward;
  // Going back in two, as a block does.
  void backward_input(tessera::Window& window, nn::ActivationStack& stack, nn::MatrixView<T> logits,
                      tessera::vision::ImageView<T> dx);
  void backward(tessera::Window& window, nn::ActivationStack& stack);

 private:
  void compute(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<const T> x,
               nn::MatrixView<T> logits) override;
  void differentiate(tessera::Window& window, nn::ActivationStack& stack, nn::MatrixView<const T> dlogits,
                     tessera::vision::ImageView<T> dx) override;

  nn::LayerNorm<T> norm_;
  nn::Linear<T> head_;
  std::size_t dim_;
  struct Saved {
    typename nn::LayerNorm<T>::Saved norm;
    typename nn::Linear<T>::Saved head;
    typename nn::LayerNorm<T>::Between norm_between;
    typename nn::Linear<T>::Between head_between;
  };
  std::vector<Saved> saved_;  // by place
};

// The units of a transformer, of such a shape: "patch_embed", "blocks.N" and "fc".
template <typename T>
std::unique_ptr<PatchStage<T>> make_patches(const VisionShape& shape);
template <typename T>
std::unique_ptr<TransformerStage<T>> make_transformer_block(const VisionShape& shape, std::size_t index);
template <typename T>
std::unique_ptr<ClassTokenHead<T>> make_class_head(const VisionShape& shape);

}  // namespace models
