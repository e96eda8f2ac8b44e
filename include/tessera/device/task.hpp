// A callable kept in place: what a CPU stream queues. It never allocates, so a running step does not either.
// Move-only. What it captures must fit into `capacity` bytes and move without throwing.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

#pragma GCC visibility push(default)

namespace tessera {

class Task {
 public:
  static constexpr std::size_t capacity = 192;

  Task() = default;

  template <typename Function>
  requires(!std::is_same_v<std::remove_cvref_t<Function>, Task> && std::is_invocable_v<Function&>)
      Task(Function&& function) {  // NOLINT(google-explicit-constructor): a lambda is a task
    using Stored = std::remove_cvref_t<Function>;
    static_assert(sizeof(Stored) <= capacity, "a stream task captures too much: pass a pointer to a prepared struct");
    static_assert(alignof(Stored) <= alignof(std::max_align_t));
    static_assert(std::is_nothrow_move_constructible_v<Stored>);
    ::new (static_cast<void*>(storage_)) Stored(std::forward<Function>(function));
    operations_ = &operations_for<Stored>;
  }

  Task(Task&& other) noexcept { take(other); }
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      reset();
      take(other);
    }
    return *this;
  }
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  ~Task() { reset(); }

  explicit operator bool() const { return operations_ != nullptr; }
  void operator()() { operations_->invoke(storage_); }

  void reset() noexcept {
    if (operations_ != nullptr) operations_->destroy(storage_);
    operations_ = nullptr;
  }

 private:
  struct Operations {
    void (*invoke)(void*);
    void (*relocate)(void* from, void* to) noexcept;
    void (*destroy)(void*) noexcept;
  };

  template <typename Stored>
  static constexpr Operations operations_for = {
      [](void* self) { (*static_cast<Stored*>(self))(); },
      [](void* from, void* to) noexcept {
        ::new (to) Stored(std::move(*static_cast<Stored*>(from)));
        static_cast<Stored*>(from)->~Stored();
      },
      [](void* self) noexcept { static_cast<Stored*>(self)->~Stored(); },
  };

  void take(Task& other) noexcept {
    if (other.operations_ == nullptr) return;
    other.operations_->relocate(other.storage_, storage_);
    operations_ = std::exchange(other.operations_, nullptr);
  }

  alignas(std::max_align_t) std::byte storage_[capacity];
  const Operations* operations_ = nullptr;
};

}  // namespace tessera

#pragma GCC visibility pop
