// Functions that hosts and devices share.
#pragma once

#if defined(__CUDACC__)
#define TESSERA_ANY_DEVICE __host__ __device__
#else
#define TESSERA_ANY_DEVICE
#endif
