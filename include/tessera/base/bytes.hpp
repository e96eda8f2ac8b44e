// A size in bytes, kept apart from counts of elements by the type system.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

#pragma GCC visibility push(default)

namespace tessera {

class Bytes {
 public:
  constexpr Bytes() = default;
  constexpr explicit Bytes(std::uint64_t count) : count_(count) {}

  constexpr std::uint64_t count() const { return count_; }

  constexpr Bytes& operator+=(Bytes other) {
    count_ += other.count_;
    return *this;
  }
  constexpr Bytes& operator-=(Bytes other) {
    count_ -= other.count_;
    return *this;
  }
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return Bytes(a.count_ + b.count_); }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return Bytes(a.count_ - b.count_); }
  friend constexpr Bytes operator*(Bytes a, std::uint64_t n) { return Bytes(a.count_ * n); }
  friend constexpr Bytes operator*(std::uint64_t n, Bytes a) { return a * n; }
  friend constexpr auto operator<=>(Bytes, Bytes) = default;

 private:
  std::uint64_t count_ = 0;
};

// The smallest multiple of `step` that is not below `value`. `step` > 0.
constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t step) { return (value + step - 1) / step * step; }
constexpr Bytes round_up(Bytes value, Bytes step) { return Bytes(round_up(value.count(), step.count())); }

// "1.50 MiB": three significant digits, for people.
std::string to_string(Bytes value);

}  // namespace tessera

#pragma GCC visibility pop
