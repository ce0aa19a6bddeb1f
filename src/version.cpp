#include <pagoda/version.hpp>

const char* pagoda::version() noexcept { return PAGODA_VERSION_STRING; }
