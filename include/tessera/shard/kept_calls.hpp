// The calls of forward that are made once more, right before the backward window of a unit that recomputes
// (UnitOptions::recompute). Of what a call was given it keeps
//   - a copy of what came as a temporary, and of views and handles (kept_by_value) that forward only reads;
//   - a reference to all else, which must stay as it is until then.
// Views that forward writes to, by a reference that is not const, are referred to, so that backward finds what was
// written last.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace tessera {

class Window;

// Whether a copy is cheap and shows the same values. Specialise it for handles of your own.
template <typename T>
inline constexpr bool kept_by_value = std::is_trivially_copyable_v<T> && !std::is_array_v<T>;
template <typename T>
inline constexpr bool kept_by_value<std::shared_ptr<T>> = true;

// Whether module.forward(window, Args…) may be given its I-th argument to read alone.
template <typename M, typename W, std::size_t I, typename... Args, std::size_t... J>
constexpr bool only_reads(std::index_sequence<J...>) {
  return requires(M & module, W & window) {
    module.forward(window, std::declval<std::conditional_t<I == J, const std::remove_reference_t<Args>&, Args&&>>()...);
  };
}

// Argument: T& of what has a name, T of a temporary.
template <typename Argument, bool read_only>
class KeptArgument {
 public:
  explicit KeptArgument(std::remove_reference_t<Argument>& given) : kept_(keep(given)) {}

  Argument again() {
    if constexpr (!std::is_lvalue_reference_v<Argument>) {
      return Value(kept_);
    } else if constexpr (copies) {
      return kept_;
    } else {
      return *kept_;
    }
  }

 private:
  using Value = std::remove_cvref_t<Argument>;
  static constexpr bool copies = !std::is_lvalue_reference_v<Argument> || (read_only && kept_by_value<Value>);
  using Kept = std::conditional_t<copies, Value, std::remove_reference_t<Argument>*>;

  static Kept keep(std::remove_reference_t<Argument>& given) {
    if constexpr (copies) {
      return given;
    } else {
      return &given;
    }
  }

  Kept kept_;
};

// module.forward(window, args…), to be made again in windows of type W.
template <typename W, typename M, typename... Args>
class ForwardCall {
 public:
  // Temporaries that cannot be copied are gone after the first call.
  static constexpr bool can_be_kept =
      (... && (std::is_lvalue_reference_v<Args> || std::is_copy_constructible_v<std::remove_cvref_t<Args>>));

  explicit ForwardCall(M& module, std::remove_reference_t<Args>&... args)
      : ForwardCall(std::index_sequence_for<Args...>(), module, args...) {}

  void make(W& window) { make(std::index_sequence_for<Args...>(), window); }

 private:
  template <typename Argument, std::size_t I>
  static constexpr bool is_read() {
    if constexpr (std::is_lvalue_reference_v<Argument> && kept_by_value<std::remove_cvref_t<Argument>>) {
      return only_reads<M, W, I, Args...>(std::index_sequence_for<Args...>());
    } else {
      return false;
    }
  }
  template <typename Indices>
  struct Kept;
  template <std::size_t... I>
  struct Kept<std::index_sequence<I...>> {
    using Arguments = std::tuple<KeptArgument<Args, is_read<Args, I>()>...>;
  };

  template <std::size_t... I>
  ForwardCall(std::index_sequence<I...>, M& module, std::remove_reference_t<Args>&... args)
      : module_(module), args_(KeptArgument<Args, is_read<Args, I>()>(args)...) {}
  template <std::size_t... I>
  void make(std::index_sequence<I...>, W& window) {
    module_.forward(window, std::get<I>(args_).again()...);
  }

  M& module_;
  typename Kept<std::index_sequence_for<Args...>>::Arguments args_;
};

// The calls of one pass, in the order in which they were made. Memory is used again, so that a pass like one before it
// allocates nothing.
class KeptCalls {
 public:
  class Call {
   public:
    virtual ~Call() = default;
    virtual void make(Window& window) = 0;
  };
  // Ends a call: those that were kept while it lasted were made inside it.
  class Scope {
   public:
    Scope() = default;
    Scope(KeptCalls& calls, std::size_t place) : calls_(&calls), place_(place) {}
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();

   private:
    KeptCalls* calls_ = nullptr;
    std::size_t place_ = 0;
  };
  class Taken;

  KeptCalls() = default;
  KeptCalls(const KeptCalls&) = delete;
  KeptCalls& operator=(const KeptCalls&) = delete;
  ~KeptCalls();

  template <typename M, typename... Args>
  Scope keep(std::size_t unit, M& module, std::remove_reference_t<Args>&... args) {
    using Made = CallOf<M, Args...>;
    static_assert(alignof(Made) <= room_alignment, "forward takes an argument whose alignment is larger");
    Entry& entry = next(unit, sizeof(Made));
    entry.call = new (entry.room.get()) Made(module, args...);
    return Scope(*this, calls_.size() - 1);
  }
  // One that was skipped.
  void keep_none(std::size_t unit) { next(unit, 0); }
  // That the unit has a call, and the latest one was not skipped: UsageError else, for which `unit_name` is.
  void require(std::size_t unit, const std::string& unit_name) const;
  // The unit's latest call; those that were made inside it go. Throws as require() does.
  Taken take(std::size_t unit, const std::string& unit_name);
  // The same, of one that is not wanted. Nothing where there is none.
  void drop(std::size_t unit);
  void clear();  // the pass has ended

 private:
  static constexpr std::size_t room_alignment = 64;
  static constexpr std::size_t least_room = 256;  // bytes: most calls take less, so that any room does for any call
  struct Free {
    void operator()(std::byte* room) const { ::operator delete[](room, std::align_val_t(room_alignment)); }
  };
  struct Entry {
    std::size_t unit = 0;
    std::size_t end = 0;   // the call's, in calls_
    Call* call = nullptr;  // in `room`; null: skipped
    std::unique_ptr<std::byte[], Free> room;
    std::size_t bytes = 0;
  };
  template <typename M, typename... Args>
  class CallOf final : public Call {
   public:
    explicit CallOf(M& module, std::remove_reference_t<Args>&... args) : call_(module, args...) {}
    void make(Window& window) override { call_.make(window); }

   private:
    ForwardCall<Window, M, Args...> call_;
  };

  using Entries = std::vector<std::unique_ptr<Entry>>;

  Entry& next(std::size_t unit, std::size_t bytes);
  Entries::const_iterator latest(std::size_t unit) const;  // the end: there is none
  std::unique_ptr<Entry> take_out(std::size_t unit);       // null: there is none
  void put_away(std::unique_ptr<Entry> entry);

  Entries calls_;
  Entries spare_;
  std::size_t made_ = 0;  // entries in all
};

// A call that is about to be made again.
class KeptCalls::Taken {
 public:
  Taken(KeptCalls& calls, std::unique_ptr<Entry> entry) : calls_(calls), entry_(std::move(entry)) {}
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;
  ~Taken() { calls_.put_away(std::move(entry_)); }
  void make(Window& window) { entry_->call->make(window); }

 private:
  KeptCalls& calls_;
  std::unique_ptr<Entry> entry_;
};

}  // namespace tessera

#pragma GCC visibility pop
