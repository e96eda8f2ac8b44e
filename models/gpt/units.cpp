// Layers from nn as units. P is the type that a unit computes in; where it is not T, its input and output are cast.
#include "models/gpt/units.hpp"

#include <optional>

#include "tessera/nn/context.hpp"
#include "tessera/nn/embedding.hpp"
#include "tessera/nn/layer_norm.hpp"
#include "tessera/nn/transformer_block.hpp"

namespace models {

namespace {

namespace nn = tessera::nn;
using nn::ActivationStack;
using nn::MatrixView;
using nn::SequenceBatch;
using tessera::Window;

template <typename P>
class FinalLayer final : public tessera::Module {
 public:
  explicit FinalLayer(const GptShape& shape) : slices_(slices_of(shape)), norm_(shape.dim, slices_) {
    if (!slices_.any()) return;
    scatter_.emplace(tessera::CollectiveKind::reduce_scatter, slices_, shape.dim, nn::CollectiveWindows::of_input);
    gather_.emplace(tessera::CollectiveKind::all_gather, slices_, shape.dim, nn::CollectiveWindows::forward);
  }

  void visit(tessera::ModuleVisitor& visitor) override {
    norm_.visit(visitor);
    if (scatter_) scatter_->visit(visitor, "scatter");
    if (gather_) gather_->visit(visitor, "gather");
  }
  using Saved = typename nn::LayerNorm<P>::Saved;
  Saved forward(Window& window, ActivationStack& stack, MatrixView<const P> x, MatrixView<P> y, const SequenceBatch&) {
    const MatrixView<P> normed = gather_ ? stack.push<P>(x.rows, x.columns) : y;
    const Saved saved = norm_.forward(window, stack, x, normed);
    if (gather_) nn::SlicedRows<P>::copy(window, gather_->gather(window, normed, y.rows), y);
    return saved;
  }
  void backward(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<P> gradient) {
    const MatrixView<P> mine = mine_of(gradient);
    sum(window, gradient, mine);
    norm_.backward(window, stack, saved, mine, mine);
  }
  using Between = typename nn::LayerNorm<P>::Between;
  Between backward_input(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<P> gradient) {
    const MatrixView<P> mine = mine_of(gradient), dy = stack.push<P>(mine.rows, mine.columns);
    sum(window, gradient, dy);
    return norm_.backward_input(window, stack, saved, dy, mine);
  }
  void backward_parameters(Window& window, ActivationStack& stack, const Saved& saved, const Between& dy) {
    norm_.backward_parameters(window, stack, saved, dy);
  }

 private:
  MatrixView<P> mine_of(MatrixView<P> all) const { return {all.data, slices_.rows_of(all.rows).count, all.columns}; }
  // This rank's rows of what all slices have.
  void sum(Window& window, MatrixView<const P> all, MatrixView<P> to) {
    if (scatter_) {
      nn::SlicedRows<P>::copy(window, all, scatter_->summand(window, all.rows));
      all = scatter_->scatter(window, all.rows);
    }
    if (all.data != to.data) nn::SlicedRows<P>::copy(window, all, to);
  }

  nn::Slices slices_;
  nn::LayerNorm<P> norm_;
  std::optional<nn::SlicedRows<P>> scatter_, gather_;
};

template <typename T>
class SpreadUnitOf final : public SpreadUnit<T> {
 public:
  explicit SpreadUnitOf(const GptShape& shape) : slices_(slices_of(shape)), rows_(slices_, shape.dim) {}

  void visit(tessera::ModuleVisitor& visitor) override { rows_.visit(visitor); }
  void forward(Window& window, MatrixView<const T> x, MatrixView<T> y, const SequenceBatch& sequences) override {
    rows_.forward(window, x, y);
    drop(window, y, sequences);
  }
  void backward(Window& window, MatrixView<T> dy, MatrixView<T> dx, const SequenceBatch& sequences) override {
    drop(window, dy, sequences);
    rows_.backward(window, dy, dx);
  }

 private:
  void drop(Window& window, MatrixView<T> rows, const SequenceBatch& sequences) {
    constexpr std::size_t place = 0;  // the embedding's
    nn::drop_rows<T>(window, sequences, place, slices_.rows_of(sequences.rows).first, rows, rows);
  }

  nn::Slices slices_;
  nn::SpreadRows<T> rows_;
};

template <typename T, typename P, typename Layer>
class HiddenUnitIn final : public HiddenUnit<T> {
 public:
  template <typename... Arguments>
  explicit HiddenUnitIn(const Arguments&... arguments) : layer_(arguments...) {}

  void visit(tessera::ModuleVisitor& visitor) override { layer_.visit(visitor); }

  void forward(Window& window, ActivationStack& stack, MatrixView<const T> x, MatrixView<T> y,
               const SequenceBatch& sequences) override {
    std::optional<nn::ScratchScope> only_y;
    if (window.recomputes()) only_y.emplace(stack);
    const MatrixView<const P> own_x = read_as<P>(window, stack, kept(window, x));
    const MatrixView<P> own_y = place_for<P>(stack, y);
    this->here(saved_) = layer_.forward(window, stack, own_x, own_y, sequences);
    deliver(window, own_y, y);
  }

  void backward(Window& window, ActivationStack& stack, MatrixView<T> gradient) override {
    const nn::ScratchScope scratch(stack);
    const MatrixView<P> own = place_for<P>(stack, gradient);
    deliver(window, gradient, own);
    layer_.backward(window, stack, this->here(saved_), own);
    deliver(window, own, gradient);
  }

  void backward_input(Window& window, ActivationStack& stack, MatrixView<T> gradient) override {
    const MatrixView<P> own = place_for<P>(stack, gradient);
    deliver(window, gradient, own);
    this->here(between_) = layer_.backward_input(window, stack, this->here(saved_), own);
    deliver(window, own, gradient);
  }

  void backward(Window& window, ActivationStack& stack) override {
    layer_.backward_parameters(window, stack, this->here(saved_), this->here(between_));
  }

 private:
  // x itself, or, in a unit that saves it, the copy that stays until the backward window.
  static MatrixView<const T> kept(Window& window, MatrixView<const T> x) {
    if (window.kind() == tessera::plan::WindowKind::evaluate) return x;
    const std::span<std::byte> saved = window.saved();
    if (saved.empty()) return x;
    const MatrixView<T> copy{reinterpret_cast<T*>(saved.data()), x.rows, x.columns};
    if (window.kind() == tessera::plan::WindowKind::forward) {
      tessera::kernels::copy(window.stream(), copy.data, x.data, tessera::Bytes(sizeof(T) * x.elements()));
    }
    return copy;
  }

  Layer layer_;
  std::vector<typename Layer::Saved> saved_;
  std::vector<typename Layer::Between> between_;
};

template <typename T, typename P>
class EmbeddingUnitIn final : public EmbeddingUnit<T> {
 public:
  using Ids = typename EmbeddingUnit<T>::Ids;

  explicit EmbeddingUnitIn(const GptShape& shape)
      : embedding_(
            {.vocabulary = shape.vocabulary, .context = shape.seq, .dim = shape.dim, .slices = slices_of(shape)}) {
    if (shape.slices > 1) loss_.emplace(shape, *this);
  }

  void visit(tessera::ModuleVisitor& visitor) override { embedding_.visit(visitor); }

  void forward(Window& window, ActivationStack& stack, Ids ids, MatrixView<T> y,
               const SequenceBatch& sequences) override {
    const nn::ScratchScope scratch(stack);
    const MatrixView<P> own = place_for<P>(stack, y);
    this->here(saved_) = embedding_.forward(window, stack, ids, own, sequences);
    deliver(window, own, y);
  }

  void backward(Window& window, ActivationStack& stack, MatrixView<T> dy) override {
    const nn::ScratchScope scratch(stack);
    const MatrixView<P> own = place_for<P>(stack, dy);
    deliver(window, dy, own);
    embedding_.backward(window, stack, this->here(saved_), own);
  }

  void forward(Window& window, ActivationStack& stack, MatrixView<const T> x, const Answers& answers) override {
    const MatrixView<const P> own = read_as<P>(window, stack, x);
    this->here(saved_loss_) = embedding_.forward(window, stack, own,
                                                 {.targets = {.labels = answers.targets, .weights = answers.weights},
                                                  .loss = answers.loss,
                                                  .at_once = window.kind() != tessera::plan::WindowKind::evaluate});
  }

  void backward(Window& window, ActivationStack& stack, const HeadGradient<T>& gradient) override {
    const nn::ScratchScope scratch(stack);
    const MatrixView<P> own = place_for<P>(stack, gradient.dx);
    embedding_.backward(window, stack, this->here(saved_loss_), own);
    deliver(window, own, gradient.dx);
  }

  void backward(Window& window, ActivationStack& stack, const TiedHeadGradient<T>& gradient) override {
    embed_nothing_back(window, stack);
    backward(window, stack, HeadGradient<T>{gradient.dx});
  }

  void backward_input(Window& window, ActivationStack& stack, const TiedHeadGradient<T>& gradient) override {
    const nn::ScratchScope scratch(stack);
    const MatrixView<P> own = place_for<P>(stack, gradient.dx);
    embedding_.backward_input(window, stack, this->here(saved_loss_), own);
    deliver(window, own, gradient.dx);
  }

  void backward(Window& window, ActivationStack& stack, const TiedHeadTable&) override {
    embed_nothing_back(window, stack);
    embedding_.backward_parameters(window, stack, this->here(saved_loss_));
  }

  void forward(Window& window, ActivationStack& stack, MatrixView<const T> x, MatrixView<float> logits) override {
    const nn::ScratchScope scratch(stack);
    const MatrixView<const P> own_x = read_as<P>(window, stack, x);
    const MatrixView<P> own = place_for<P>(stack, logits);
    embedding_.forward(window, stack, own_x, own);
    deliver(window, own, logits);
  }

  LossUnit* loss() override { return loss_ ? &*loss_ : nullptr; }

 private:
  using SavedLoss = typename nn::Embedding<P>::SavedLoss;

  // Gradients of zero, of no ids.
  void embed_nothing_back(Window& window, ActivationStack& stack) {
    embedding_.backward(window, stack, typename nn::Embedding<P>::Saved{},
                        MatrixView<P>{nullptr, 0, embedding_.shape().dim});
  }

  class Loss final : public LossUnit {
   public:
    Loss(const GptShape& shape, EmbeddingUnitIn& head) : loss_(slices_of(shape), shape.vocabulary), head_(head) {}
    void visit(tessera::ModuleVisitor& visitor) override { loss_.visit(visitor); }
    void forward(Window& window) override { loss_.forward(window, head_.here(head_.saved_loss_)); }
    void forward(Window& window, MatrixView<const float> mine, MatrixView<float> logits) override {
      loss_.forward(window, mine, logits);
    }

   private:
    nn::SlicedLoss<P> loss_;
    EmbeddingUnitIn& head_;
  };

  nn::Embedding<P> embedding_;
  std::vector<typename nn::Embedding<P>::Saved> saved_;
  std::vector<SavedLoss> saved_loss_;
  std::optional<Loss> loss_;
};

}  // namespace

template <typename T>
std::unique_ptr<EmbeddingUnit<T>> make_embedding(const GptShape& shape) {
  if (stays_in_fp32(shape, embedding_name)) return std::make_unique<EmbeddingUnitIn<T, float>>(shape);
  return std::make_unique<EmbeddingUnitIn<T, T>>(shape);
}

template <typename T>
std::unique_ptr<HiddenUnit<T>> make_block(const GptShape& shape, std::size_t index) {
  const nn::TransformerShape block{.dim = shape.dim,
                                   .heads = shape.heads,
                                   .layers = shape.layers,
                                   .slices = slices_of(shape),
                                   .parts = parts_of(shape)};
  if (stays_in_fp32(shape, block_name(index))) {
    return std::make_unique<HiddenUnitIn<T, float, nn::TransformerBlock<float>>>(block, index);
  }
  return std::make_unique<HiddenUnitIn<T, T, nn::TransformerBlock<T>>>(block, index);
}

template <typename T>
std::unique_ptr<HiddenUnit<T>> make_final(const GptShape& shape) {
  if (stays_in_fp32(shape, final_name)) return std::make_unique<HiddenUnitIn<T, float, FinalLayer<float>>>(shape);
  return std::make_unique<HiddenUnitIn<T, T, FinalLayer<T>>>(shape);
}

template <typename T>
std::unique_ptr<SpreadUnit<T>> make_spread(const GptShape& shape) {
  return shape.slices > 1 ? std::make_unique<SpreadUnitOf<T>>(shape) : nullptr;
}

#define MODELS_GPT_UNITS(T)                                                         \
  template std::unique_ptr<EmbeddingUnit<T>> make_embedding(const GptShape&);       \
  template std::unique_ptr<HiddenUnit<T>> make_block(const GptShape&, std::size_t); \
  template std::unique_ptr<HiddenUnit<T>> make_final(const GptShape&);              \
  template std::unique_ptr<SpreadUnit<T>> make_spread(const GptShape&);
MODELS_GPT_UNITS(float)
MODELS_GPT_UNITS(tessera::bf16)
MODELS_GPT_UNITS(tessera::fp16)

}  // namespace models
