// The optimizer updates for any instruction set, operation by operation as optimizer.hpp writes them.
#pragma once

#include "kernels/cpu/blocks.hpp"

namespace tessera::kernels {

// Whether and how new masters are written a second time.
struct NotRounded {
  static constexpr bool rounds = false, past_caches = false;
};
template <Format to, bool past>
struct Rounded {
  static constexpr bool rounds = true, past_caches = past;
  static constexpr Format format = to;
};

// update(rounding), `rounding` being one of those.
template <typename Lanes, typename Update>
void with_rounding(void* rounded, Format format, std::size_t count, Update update) {
  if (rounded == nullptr) return update(NotRounded{});
  const bool past_caches = streams(rounded, count * sizeof(std::uint16_t));
  if (format == Format::bf16 && past_caches) return update(Rounded<Format::bf16, true>{});
  if (format == Format::bf16) return update(Rounded<Format::bf16, false>{});
  past_caches ? update(Rounded<Format::fp16, true>{}) : update(Rounded<Format::fp16, false>{});
}

template <typename Lanes, typename Rounding>
[[gnu::always_inline]] inline void write_master(float* master, void* rounded, std::size_t at, std::size_t n,
                                                Lanes value) {
  write(master, at, n, value);
  if constexpr (Rounding::rounds) write_result<Lanes, Rounding::format, Rounding::past_caches>(rounded, at, n, value);
}

// The format is the same for all of an update, so the branch costs nothing beside its memory.
template <typename Lanes>
[[gnu::always_inline]] inline Lanes read_gradient(const void* data, Format format, std::size_t at, std::size_t n) {
  if (format == Format::fp32) return read<Lanes>(data, at, n);
  return format == Format::bf16 ? read<Lanes, Format::bf16>(data, at, n) : read<Lanes, Format::fp16>(data, at, n);
}

// AdamW of sixteen elements.
template <typename Lanes>
struct AdamWOfLanes {
  explicit AdamWOfLanes(const AdamWRule& a)
      : factor(Lanes::all(a.gradient_factor)),
        beta1(Lanes::all(a.beta1)),
        rest1(Lanes::all(1.0f - a.beta1)),
        beta2(Lanes::all(a.beta2)),
        rest2(Lanes::all(1.0f - a.beta2)),
        correction1(Lanes::all(a.first_correction)),
        correction2(Lanes::all(a.second_correction)),
        epsilon(Lanes::all(a.epsilon)),
        rate(Lanes::all(a.learning_rate)),
        decay(Lanes::all(a.weight_decay)),
        kept(Lanes::all(a.coupled ? 1.0f : 1.0f - a.learning_rate * a.weight_decay)),
        coupled(a.coupled) {}

  // Returns the new masters; `m` and `v` become the new moments.
  [[gnu::always_inline]] Lanes update(Lanes master, Lanes& m, Lanes& v, Lanes gradient) const {
    Lanes g = gradient * factor;
    if (coupled) g = fma(decay, master, g);
    m = fma(beta1, m, rest1 * g);
    v = fma(beta2, v, (rest2 * g) * g);
    const Lanes m_hat = m / correction1;
    const Lanes v_hat = v / correction2;
    const Lanes decayed = master * kept;
    return decayed - rate * (m_hat / (square_root(v_hat) + epsilon));
  }

  Lanes factor, beta1, rest1, beta2, rest2, correction1, correction2, epsilon, rate, decay, kept;
  bool coupled;
};

template <typename Lanes, typename Rounding>
void adamw_as(const AdamWArguments& a) {
  const AdamWOfLanes<Lanes> adamw(a.rule);
  for_each_block(
      a.count, [&](std::size_t at, std::size_t n) __attribute__((always_inline)) {
        Lanes m = read<Lanes>(a.first_moment, at, n), v = read<Lanes>(a.second_moment, at, n);
        const Lanes gradient = read_gradient<Lanes>(a.gradient, a.gradient_format, at, n);
        const Lanes master = adamw.update(read<Lanes>(a.master, at, n), m, v, gradient);
        write(a.first_moment, at, n, m);
        write(a.second_moment, at, n, v);
        write_master<Lanes, Rounding>(a.master, a.rounded, at, n, master);
      });
  if constexpr (Rounding::past_caches) Lanes::fence();
}

template <typename Lanes>
void adamw_lanes(const AdamWArguments& a) {
  with_rounding<Lanes>(a.rounded, a.rounded_format, a.count,
                       [&](auto rounding) { adamw_as<Lanes, decltype(rounding)>(a); });
}

template <typename Lanes, typename Rounding, bool with_velocity, bool nesterov>
void sgd_as(const SgdArguments& a) {
  const Lanes factor = Lanes::all(a.gradient_factor), decay = Lanes::all(a.weight_decay);
  const Lanes momentum = Lanes::all(a.momentum), descent = Lanes::all(-a.learning_rate), kept = Lanes::all(a.kept);

  for_each_block(
      a.count, [&](std::size_t at, std::size_t n) __attribute__((always_inline)) {
        const Lanes master = read<Lanes>(a.master, at, n);
        const Lanes g = fma(decay, master, read_gradient<Lanes>(a.gradient, a.gradient_format, at, n) * factor);
        Lanes direction = g;
        if constexpr (with_velocity) {
          const Lanes velocity = fma(momentum, read<Lanes>(a.velocity, at, n), kept * g);
          write(a.velocity, at, n, velocity);
          direction = nesterov ? fma(momentum, velocity, g) : velocity;
        }
        write_master<Lanes, Rounding>(a.master, a.rounded, at, n, fma(descent, direction, master));
      });
  if constexpr (Rounding::past_caches) Lanes::fence();
}

template <typename Lanes>
void sgd_lanes(const SgdArguments& a) {
  with_rounding<Lanes>(a.rounded, a.rounded_format, a.count, [&](auto rounding) {
    using Rounding = decltype(rounding);
    if (a.velocity == nullptr) return sgd_as<Lanes, Rounding, false, false>(a);
    if (a.nesterov) return sgd_as<Lanes, Rounding, true, true>(a);
    sgd_as<Lanes, Rounding, true, false>(a);
  });
}

// Which states there are is the same for all of an update, as the gradient's format is.
template <typename Lanes, typename Rounding>
void root_scaled_as(const RootScaledArguments& a) {
  const Lanes factor = Lanes::all(a.gradient_factor), weight_decay = Lanes::all(a.weight_decay);
  const Lanes decay = Lanes::all(a.decay), rest = Lanes::all(a.rest), initial = Lanes::all(a.initial);
  const Lanes epsilon = Lanes::all(a.epsilon), momentum = Lanes::all(a.momentum);
  const Lanes descent = Lanes::all(-a.learning_rate);

  for_each_block(
      a.count, [&](std::size_t at, std::size_t n) __attribute__((always_inline)) {
        const Lanes master = read<Lanes>(a.master, at, n);
        const Lanes g = fma(weight_decay, master, read_gradient<Lanes>(a.gradient, a.gradient_format, at, n) * factor);
        const Lanes squares = fma(rest * g, g, decay * read<Lanes>(a.squares, at, n));
        write(a.squares, at, n, squares);
        Lanes under = squares + initial;
        if (a.mean != nullptr) {
          const Lanes before = read<Lanes>(a.mean, at, n);
          const Lanes mean = fma(rest, g - before, before);
          write(a.mean, at, n, mean);
          under = squares - mean * mean;
        }
        Lanes direction = g / (square_root(under) + epsilon);
        if (a.velocity != nullptr) {
          direction = fma(momentum, read<Lanes>(a.velocity, at, n), direction);
          write(a.velocity, at, n, direction);
        }
        write_master<Lanes, Rounding>(a.master, a.rounded, at, n, fma(descent, direction, master));
      });
  if constexpr (Rounding::past_caches) Lanes::fence();
}

template <typename Lanes>
void root_scaled_lanes(const RootScaledArguments& a) {
  with_rounding<Lanes>(a.rounded, a.rounded_format, a.count,
                       [&](auto rounding) { root_scaled_as<Lanes, decltype(rounding)>(a); });
}

}  // namespace tessera::kernels
