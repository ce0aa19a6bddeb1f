# Downloads a pinned Kokkos, if PAGODA_FETCH_KOKKOS is on. Kokkos' own options (Kokkos_ENABLE_CUDA, Kokkos_ARCH_...) are
# read from the cache; the presets set them.
include(FetchContent)
FetchContent_Declare(Kokkos
  URL https://github.com/kokkos/kokkos/releases/download/5.0.2/kokkos-5.0.2.tar.gz
  URL_HASH SHA256=188817bb452ca805ee8701f1c5adbbb4fb83dc8d1c50624566a18a719ba0fa5e
  DOWNLOAD_EXTRACT_TIMESTAMP OFF
  SYSTEM)
FetchContent_MakeAvailable(Kokkos)
