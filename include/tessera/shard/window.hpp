// A window: the stretch of the program in which one unit's parameters are whole on this rank.
//
// Order. Windows open in the order of the program: units in the order of FullyShard::add and backward in reverse, or as
// declared. Opening another one is a UsageError that names what was expected.
//
// Nesting. Where the program says so, windows of other units open and close inside this one, by forward() and
// backward(): a module whose parts are units of their own calls them as it calls its other parts. All that are open
// are whole and may be used; they close from the inside out.
//
// Address. Inside its windows a unit's parameters and gradients stand at one address for the model's whole life, so
// pointers taken in one window and captured graphs stay valid in the unit's next window. Outside, the memory may belong
// to another unit; the accessors throw.
//
// Stream. The window's work is enqueued on stream(). It is ordered after the gather of the parameters and before
// everything that happens to the memory later. Work on other streams is brought in with join().
//
// Gradients. In a backward window, gradient() says for each parameter whether the caller overwrites (default) or adds;
// the first `accumulate` of a window starts from zero. The caller divides by nothing: the runtime divides once by ranks
// × micro-batches, or by weights (UpdateOptions). A parameter whose gradient was not asked for in its unit's backward
// windows is a UsageError at close, unless it is optional or frozen, or its unit was skipped. In a unit with several
// backward windows the runtime adds them up.
//
// Collectives. What ranks bring together inside the window (collective.hpp) was declared before finalize(), and each
// comes in its turn.
//
// End. A window ends with the callback that got it, or with close(). A window that is left by an exception aborts the
// world: every rank gets an error that carries the first cause. Destructors never communicate. A closed handle may
// outlive its model; whatever is asked of it is a UsageError.
//
// Thread safety: none; a window belongs to its rank's thread.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "tessera/base/half.hpp"
#include "tessera/device/stream.hpp"
#include "tessera/plan/program.hpp"
#include "tessera/shard/buffer.hpp"
#include "tessera/shard/collective.hpp"
#include "tessera/shard/kept_calls.hpp"
#include "tessera/shard/parameter.hpp"

#pragma GCC visibility push(default)

namespace tessera {

class [[gnu::visibility("hidden")]] Executor;
class Module;
class WatchedPass;
class StandInModel;
class WindowView;
struct WindowLink;

enum class GradientMode { overwrite, accumulate };

// A pass that only counts may note here what its windows would compute; who makes it knows what it is.
class WindowNotes {
 public:
  virtual ~WindowNotes() = default;
};

// A window shows a tensor as this.
struct TensorMemory {
  void* data;
  std::size_t elements;
};

class Window {
 public:
  Window(Window&&) noexcept;
  Window& operator=(Window&&) = delete;
  ~Window();

  const std::string& unit() const;
  plan::WindowKind kind() const;
  // Whether the parameter has a gradient: false when it is frozen, and in steps of a program that trains other units.
  // Throws as parameter() does.
  bool trains(const Parameter& parameter) const;
  bool is_open() const;
  // In a forward window: whether the unit's forward functions are called again before its backward window
  // (UnitOptions::recompute), so that of this call only the results are needed, and nothing that backward reads.
  bool recomputes() const;

  // How many granules a step of this window's program has (FullyShardOptions::granules); 0: none, or the pass is
  // watched without a plan.
  std::size_t granules() const;

  // False in a pass that only counts or learns the order of windows (watched_pass.hpp): parameters and gradients are
  // then empty, there is no stream, and nothing may be enqueued; what would be may be noted in notes(), unless that is
  // null.
  bool computes() const;
  WindowNotes* notes();

  // The compute stream: what is enqueued here sees whole parameters. The same stream in every window of a model.
  Stream& stream();
  // Orders `other` after the window's opening, and the window's end after everything that is enqueued on `other` until
  // close(). Throws UsageError for a stream of another device; the window stays as it was.
  void join(Stream& other);

  // The object, moved to a place of its own, where it stays until everything has run that was enqueued on stream() and
  // on joined streams before the window closed: what tasks of this window use and nobody else needs. Allocates. It ends
  // on the rank's thread, in a later call of the model, or with it.
  template <typename T>
  T& keep(T object) {
    auto kept = std::make_shared<T>(std::move(object));
    keep_object(kept);
    return *kept;
  }

  // The whole parameter, row-major in its shape, on the stream's device. T is the unit's parameter dtype (float, bf16
  // or fp16; double in memory that no model owns). Throws UsageError for a closed window, another unit's parameter, or
  // the wrong T.
  template <typename T = float>
  std::span<const T> parameter(const Parameter& parameter) {
    const TensorMemory raw = raw_parameter(parameter, asked<T>());
    return {static_cast<const T*>(raw.data), raw.elements};
  }

  // The whole unreduced gradient. T is the unit's gradient dtype. Throws as parameter() does, outside backward windows,
  // and for parameters that trains() denies.
  template <typename T = float>
  std::span<T> gradient(const Parameter& parameter, GradientMode mode = GradientMode::overwrite) {
    const TensorMemory raw = raw_gradient(parameter, asked<T>(), mode);
    return {static_cast<T*>(raw.data), raw.elements};
  }

  // The buffer's values, to read and to write on the stream. Throws UsageError as parameter() does.
  std::span<float> buffer(const Buffer& buffer);

  // UnitOptions::saved bytes, aligned as the arena's buffers, that belong to the unit from its forward window on until
  // its last backward one closes: written in the first on the stream, read or written in recompute and backward
  // windows, at one address in all. None of a unit that saves nothing, and where computes() is false. Throws UsageError
  // in evaluation windows.
  std::span<std::byte> saved();

  // Where this rank writes what it brings to a collective of the unit that comes next (collective.hpp), on the stream.
  // Throws UsageError where another one comes next, or none.
  template <typename T = double>
  std::span<T> contribution(const Collective& collective) {
    const TensorMemory raw = raw_contribution(collective, asked<T>());
    return {static_cast<T*>(raw.data), raw.elements};
  }
  // Begins a collective that overlaps. Throws as contribution() does, and for one that does not.
  template <typename T = double>
  void begin(const Collective& collective) {
    raw_begin(collective, asked<T>());
  }
  // Enqueues the collective, where it has not begun: every rank of the group does it, and work that is enqueued behind
  // it sees what all brought. On the CPU the compute stream runs what it is given at once, so the call waits for the
  // other ranks there. Throws as contribution() does.
  template <typename T = double>
  Collected<T> collect(const Collective& collective) {
    const Collected<std::byte> came = raw_collect(collective, asked<T>());
    return came.as<T>();
  }

  // The current loss scale, a scalar in the stream's device memory: whoever seeds the backward pass multiplies with it.
  const float* loss_scale() const;

  // Opens a window of `part`, a module that was added to the same model as a unit of its own, inside this one, calls
  // part.forward(window, args…), closes it, and returns what that returned. The window is of this one's kind, in a
  // backward window a recomputation. An exception aborts the world and is rethrown. Throws UsageError for a module that
  // is no unit of the model, and for a window that the program does not have there.
  template <typename M, typename... Args>
  decltype(auto) forward(M& part, Args&&... args) {
    const plan::WindowKind inner = kind() == plan::WindowKind::backward ? plan::WindowKind::recompute : kind();
    return open_inside(part, inner).run_forward(part, std::forward<Args>(args)...);
  }
  // Calls part.backward(window, args…) in a backward window, behind a recompute window of a unit that recomputes.
  template <typename M, typename... Args>
  decltype(auto) backward(M& part, Args&&... args) {
    compute_again(part);
    return open_inside(part, plan::WindowKind::backward).run([&](Window& window) -> decltype(auto) {
      return part.backward(window, std::forward<Args>(args)...);
    });
  }
  // Whether the module is a unit of its own, so that its tensors are in no other's window.
  bool is_unit(const Module& part) const;

  // Calls body(*this), closes, and returns what body returned. An exception inside aborts the world and is rethrown.
  template <typename Body>
  std::invoke_result_t<Body, Window&> run(Body&& body) {
    using Result = std::invoke_result_t<Body, Window&>;
    try {
      if constexpr (std::is_void_v<Result>) {
        body(*this);
        close();
      } else {
        Result result = body(*this);
        close();
        return std::forward<Result>(result);
      }
    } catch (...) {
      abandon();
      throw;
    }
  }

  // Ends the window; enqueues what the plan has up to the next window. Does not synchronise. Throws UsageError while
  // one is open inside it.
  void close();

 private:
  friend class Executor;
  friend class ModelSteps;
  friend class StandInModel;
  friend class WatchedPass;
  Window(std::shared_ptr<const WindowLink> link, plan::WindowUse use, std::size_t serial);
  WindowView& opened() const;  // throws where it is not open
  void keep_object(std::shared_ptr<void> object);
  Window open_inside(const Module& part, plan::WindowKind kind);
  void compute_again(const Module& part);

  // Calls module.forward(*this, args…) as run() does, and keeps the call of a unit that recomputes.
  template <typename M, typename... Args>
  decltype(auto) run_forward(M& module, Args&&... args) {
    return run([&](Window& window) -> decltype(auto) {
      const KeptCalls::Scope kept = window.keep_call<M, Args...>(module, args...);
      return module.forward(window, std::forward<Args>(args)...);
    });
  }
  template <typename M, typename... Args>
  KeptCalls::Scope keep_call(M& module, std::remove_reference_t<Args>&... args) {
    KeptCalls* const calls = kept_calls();
    if (calls == nullptr) return {};
    if constexpr (ForwardCall<Window, M, Args...>::can_be_kept) {
      return calls->keep<M, Args...>(use_.unit, module, args...);
    } else {
      refuse_to_keep();
    }
  }
  KeptCalls* kept_calls() const;  // null: the unit's calls are made once
  [[noreturn]] void refuse_to_keep() const;
  void abandon() noexcept;  // inside a catch block: aborts the world with the current exception as cause
  template <typename T>
  static constexpr std::optional<DType> asked() {
    if constexpr (std::is_same_v<T, double>)
      return std::nullopt;
    else
      return dtype_of<T>;
  }
  TensorMemory raw_contribution(const Collective& collective, std::optional<DType> type);
  void raw_begin(const Collective& collective, std::optional<DType> type);
  Collected<std::byte> raw_collect(const Collective& collective, std::optional<DType> type);
  TensorMemory raw_parameter(const Parameter& parameter, std::optional<DType> type);
  TensorMemory raw_gradient(const Parameter& parameter, std::optional<DType> type, GradientMode mode);

  std::shared_ptr<const WindowLink> link_;  // to the model, which may be gone; null once moved from
  plan::WindowUse use_;
  std::size_t serial_;         // which opening this handle belongs to
  int exceptions_at_opening_;  // tells an unwinding from a forgotten close()
};

}  // namespace tessera

#pragma GCC visibility pop
