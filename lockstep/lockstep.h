// All of Lockstep's public interface.
#pragma once

#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "lockstep/comm/process_group.h"
