// Chooses one of several ways to compute something while it lives, then the one before again.
#pragma once

template <auto select, auto active>
class Chosen {
 public:
  explicit Chosen(decltype(active()) set) { select(set); }
  ~Chosen() { select(before_); }
  Chosen(const Chosen&) = delete;
  Chosen& operator=(const Chosen&) = delete;

 private:
  decltype(active()) before_ = active();
};
