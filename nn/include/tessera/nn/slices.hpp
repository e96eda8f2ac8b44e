// Tensor parallelism (Shoeybi et al. 2019): ranks along Axis::tensor have slices of a layer's matrices, and work on the
// same samples. Between its matrices each has some of the batch's rows, so that norms, dropout and residual paths are
// shared, too (Korthikanti et al. 2022): rows are gathered in front of a matrix whose outputs are cut, and summed and
// scattered behind one whose inputs are. These are collectives in the layers' windows.
//
// A pass has at most as many rows as collectives were declared for; each rank has an equal part of those, the last ones
// fewer of a smaller pass, or none. What is rounded between slices is rounded to the layer's element type, and added in
// fp32. Not in fp64.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>
#include <type_traits>

#include "tessera/base/error.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/nn/element.hpp"
#include "tessera/nn/view.hpp"
#include "tessera/shard/collective.hpp"
#include "tessera/shard/module.hpp"
#include "tessera/shard/parameter.hpp"
#include "tessera/shard/window.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn {

struct Slices {
  std::size_t count = 1;  // ranks along Axis::tensor; 1: nothing is cut
  std::size_t place = 0;  // this rank's along it
  std::size_t rows = 0;   // of the largest pass, over all of these ranks
  bool in_two = false;    // layers go back in two passes, each of which has collectives of its own

  bool any() const { return count > 1; }
  std::size_t part(std::size_t whole) const { return (whole + count - 1) / count; }
  // This rank's rows of a pass; or of a matrix of which it has a slice, those beyond the whole left out.
  struct Part {
    std::size_t first;
    std::size_t count;
  };
  Part part_of(std::size_t all, std::size_t each) const {
    const std::size_t first = std::min(place * each, all);
    return {first, std::min(each, all - first)};
  }
  Part rows_of(std::size_t all) const { return any() ? part_of(all, part(rows)) : Part{0, all}; }
};

// Throws UsageError for layers that are cut, among slices or parts of sequences, and that were not made for two passes.
inline void require_two_passes(bool is_cut, bool in_two) {
  if (!is_cut || in_two) return;
  throw UsageError(
      "layers go back in two passes, and their collectives are of one: make them with Slices::in_two, and "
      "ContextParts::in_two");
}

// A parameter that is the same on all of them has these.
inline ParameterOptions alike_on(const Slices& slices) {
  return {.slice = slices.any() ? std::optional(plan::Slice{}) : std::nullopt};
}

// of_input: back, where the gradient of a layer's input is formed; of_weights: where those of its parameters are. Both
// are one window where layers go back in one pass.
enum class CollectiveWindows { forward, of_input, of_weights, of_both };

// A collective of layers' elements over the slices. Throws UsageError for fp64, of which no sums are formed.
template <Element T>
CollectiveOptions sliced_collective(CollectiveKind kind, CollectiveWindows windows, bool in_two = false) {
  if constexpr (std::is_same_v<T, double>) {
    throw UsageError("slices of layers (Axis::tensor) in fp64: choose fp32, bf16 or fp16");
  } else {
    using enum CollectiveWindows;
    const bool is_forward = windows == forward;
    return {.kind = kind,
            .type = dtype_of<T>,
            .forward = is_forward,
            .backward = in_two ? windows == of_weights || windows == of_both : !is_forward,
            .backward_input = in_two && (windows == of_input || windows == of_both),
            .evaluate = is_forward,
            .axes = Axis::tensor};
  }
}

// One collective of rows among slices. Both directions take and give views of [rows, columns]. One that `overlaps` may
// begin before its result is asked for.
template <Element T>
class SlicedRows {
 public:
  SlicedRows(CollectiveKind kind, const Slices& slices, std::size_t columns, CollectiveWindows windows,
             bool overlaps = false)
      : slices_(slices),
        columns_(columns),
        collective_(slices.part(slices.rows) * columns, options_of(kind, slices, windows, overlaps)) {}

  void visit(ModuleVisitor& visitor, std::string_view name) { visitor(name, collective_); }

  void begin(Window& window) { window.begin<T>(collective_); }
  void require_two_passes() const { nn::require_two_passes(true, slices_.in_two); }

  // An all-gather: all rows of the pass, of which this rank brings its own. The result stays until the next collective.
  MatrixView<const T> gather(Window& window, MatrixView<const T> mine, std::size_t all) {
    bring(window, mine);
    return gathered(window, all);
  }
  void bring(Window& window, MatrixView<const T> mine) {
    copy(window, mine, {window.contribution<T>(collective_).data(), mine.rows, columns_});
  }
  MatrixView<const T> gathered(Window& window, std::size_t all) {
    return {window.collect<T>(collective_).first, all, columns_};
  }
  // A reduce-scatter: where this rank writes its part of the sum of all rows; and then its own rows of the sum, which
  // stay until the next collective.
  MatrixView<T> summand(Window& window, std::size_t all) {
    return {window.contribution<T>(collective_).data(), all, columns_};
  }
  MatrixView<const T> scatter(Window& window, std::size_t all) {
    return {window.collect<T>(collective_).first, slices_.rows_of(all).count, columns_};
  }

  static void copy(Window& window, MatrixView<const T> from, MatrixView<T> to) {
    if (window.computes()) kernels::copy(window.stream(), to.data, from.data, Bytes(from.elements() * sizeof(T)));
  }

 private:
  static CollectiveOptions options_of(CollectiveKind kind, const Slices& slices, CollectiveWindows windows,
                                      bool overlaps) {
    CollectiveOptions options = sliced_collective<T>(kind, windows, slices.in_two);
    options.overlaps = overlaps;
    return options;
  }

  Slices slices_;
  std::size_t columns_;
  Collective collective_;
};

// Between a layer that leaves sums of slices and those that have some of the rows each: forward y = drop(this rank's
// rows of the sum of all x), backward the gradient of all rows, the same on every rank. A unit of its own.
template <Element T>
class SpreadRows final : public Module {
 public:
  SpreadRows(const Slices& slices, std::size_t columns)
      : scatter_(CollectiveKind::reduce_scatter, slices, columns, CollectiveWindows::forward),
        gather_(CollectiveKind::all_gather, slices, columns, CollectiveWindows::of_weights) {}

  void visit(ModuleVisitor& visitor) override {
    scatter_.visit(visitor, "scatter");
    gather_.visit(visitor, "gather");
  }
  void forward(Window& window, MatrixView<const T> x, MatrixView<T> y) {
    SlicedRows<T>::copy(window, x, scatter_.summand(window, x.rows));
    SlicedRows<T>::copy(window, scatter_.scatter(window, x.rows), y);
  }
  void backward(Window& window, MatrixView<const T> dy, MatrixView<T> dx) {
    SlicedRows<T>::copy(window, gather_.gather(window, dy, dx.rows), dx);
  }

 private:
  SlicedRows<T> scatter_;
  SlicedRows<T> gather_;
};

}  // namespace tessera::nn

#pragma GCC visibility pop
