// The optimizer updates for any instruction set, operation by operation as optimizer.hpp writes them.
#pragma once

#include "kernels/cpu/blocks.hpp"

namespace tessera::kernels {

template <typename Lanes>
void adamw_lanes(const AdamWArguments& a) {
  const Lanes factor = Lanes::all(a.gradient_factor);
  const Lanes beta1 = Lanes::all(a.beta1), rest1 = Lanes::all(1.0f - a.beta1);
  const Lanes beta2 = Lanes::all(a.beta2), rest2 = Lanes::all(1.0f - a.beta2);
  const Lanes correction1 = Lanes::all(a.first_correction), correction2 = Lanes::all(a.second_correction);
  const Lanes epsilon = Lanes::all(a.epsilon), rate = Lanes::all(a.learning_rate);
  const Lanes kept = Lanes::all(1.0f - a.learning_rate * a.weight_decay);

  for_each_block(
      a.count, [&](std::size_t at, std::size_t n) __attribute__((always_inline)) {
        const Lanes g = read<Lanes>(a.gradient, at, n) * factor;
        const Lanes m = fma(beta1, read<Lanes>(a.first_moment, at, n), rest1 * g);
        const Lanes v = fma(beta2, read<Lanes>(a.second_moment, at, n), (rest2 * g) * g);
        const Lanes m_hat = m / correction1;
        const Lanes v_hat = v / correction2;
        const Lanes decayed = read<Lanes>(a.master, at, n) * kept;
        write(a.first_moment, at, n, m);
        write(a.second_moment, at, n, v);
        write(a.master, at, n, decayed - rate * (m_hat / (square_root(v_hat) + epsilon)));
      });
}

template <typename Lanes, bool with_velocity, bool nesterov>
void sgd_as(const SgdArguments& a) {
  const Lanes factor = Lanes::all(a.gradient_factor), decay = Lanes::all(a.weight_decay);
  const Lanes momentum = Lanes::all(a.momentum), descent = Lanes::all(-a.learning_rate);

  for_each_block(
      a.count, [&](std::size_t at, std::size_t n) __attribute__((always_inline)) {
        const Lanes master = read<Lanes>(a.master, at, n);
        const Lanes g = fma(decay, master, read<Lanes>(a.gradient, at, n) * factor);
        Lanes direction = g;
        if constexpr (with_velocity) {
          const Lanes velocity = fma(momentum, read<Lanes>(a.velocity, at, n), g);
          write(a.velocity, at, n, velocity);
          direction = nesterov ? fma(momentum, velocity, g) : velocity;
        }
        write(a.master, at, n, fma(descent, direction, master));
      });
}

template <typename Lanes>
void sgd_lanes(const SgdArguments& a) {
  if (a.velocity == nullptr) return sgd_as<Lanes, false, false>(a);
  if (a.nesterov) return sgd_as<Lanes, true, true>(a);
  return sgd_as<Lanes, true, false>(a);
}

}  // namespace tessera::kernels
