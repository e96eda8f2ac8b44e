// The bytes that one rank's runtime holds, added up from the plan before anything is allocated.
#pragma once

#include <array>

#include "tessera/plan/plan.hpp"

#pragma GCC visibility push(default)

namespace tessera::plan {

// The granularity of category regions.
inline constexpr Bytes region_alignment{4096};
// Every buffer starts on this many bytes inside its region: alignment_elements of fp32.
inline constexpr Bytes buffer_alignment{512};

// The step's scalars (kernels::StepScalars), one partial norm (fp64; with granules kernels::ExactSquares), and what a
// rank brings to the mean (kernels::StepPart; with granules the weight of each follows, fp64). plan/ stands below
// kernels/, which asserts the sizes.
inline constexpr Bytes scalars_size{72};
inline constexpr Bytes loss_scale_offset{44};
inline constexpr Bytes norm_size{8};
inline constexpr Bytes exact_norm_size{32};
inline constexpr Bytes step_part_size{16};
inline constexpr Bytes granule_weight_size{8};

// Through so much of the host's memory values of the disk pass in each direction (PlanOptions::disk_staging).
inline constexpr Bytes disk_staging{std::uint64_t{8} << 20};

struct CategoryBytes {
  Category category;
  Bytes offset;  // of the region in the arena
  Bytes size;    // page-rounded; 0 when the plan has no buffer of this category
};

struct MemoryReport {
  std::array<CategoryBytes, category_count> categories;
  Bytes peak;  // the arena: the sum of the regions
  Bytes host;  // of that, the host's memory, which is an arena of its own: offsets there follow the device's
  Bytes disk;  // and the file: offsets there follow the host's
  Bytes device() const { return peak - host - disk; }
  Bytes live;  // the largest sum of bytes in use at one operation: persistent buffers, and slots from acquisition to
               // release
};

MemoryReport memory(const Plan& plan);

}  // namespace tessera::plan

#pragma GCC visibility pop
